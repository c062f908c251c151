/* SPDX-License-Identifier: MIT */
/* All of libomnikv. */
#ifndef OMNIKV_H
#define OMNIKV_H

#include <omnikv/types.h>
#include <omnikv/pool.h>
#include <omnikv/window.h>
#include <omnikv/layout.h>
#include <omnikv/key.h>
#include <omnikv/device.h>
#include <omnikv/ring.h>
#include <omnikv/manager.h>
#include <omnikv/sequence.h>
#include <omnikv/pipeline.h>

#endif /* OMNIKV_H */
