// SPDX-License-Identifier: MIT
/*
 * All device code is one translation unit, so that it is one fatbin.
 *
 * Entry points are extern "C" and named in launch.c; everything else is static.
 */
#include "copy.cu"
#include "relayout.cu"
#include "crc32c.cu"
#include "event.cu"
