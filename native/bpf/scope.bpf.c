/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Looks at the threads of watched processes: samples of what runs (a timer on every CPU), exact times of every thread
 * (the scheduler's tracepoints), and children, programs and ends (followed here, so that no fork is too quick).
 * Nothing of a process that is not watched is read or kept.
 */
#include "vmlinux.h"
#include "helpers.h"
#include "scope.h"
#include "scope_maps.h"
#include "registers.h"
#include "threads.h"
#include "switches.h"
#include "processes.h"
#include "python_walk.h"
#include "samples.h"
#include "names.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
