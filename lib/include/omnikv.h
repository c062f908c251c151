/* SPDX-License-Identifier: MIT */
/*
 * All of libomnikv in one include.
 *
 * Holds nothing itself; a program that needs one part may include that header alone.
 */
#ifndef OMNIKV_H
#define OMNIKV_H

#include <omnikv/version.h>
#include <omnikv/types.h>
#include <omnikv/pool.h>
#include <omnikv/window.h>
#include <omnikv/layout.h>
#include <omnikv/key.h>
#include <omnikv/device.h>
#include <omnikv/reshard.h>
#include <omnikv/ring.h>
#include <omnikv/manager.h>
#include <omnikv/sequence.h>
#include <omnikv/pipeline.h>
#include <omnikv/spill.h>

#endif /* OMNIKV_H */
