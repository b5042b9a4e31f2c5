#include "replay/compute.h"

#include "common/clock.h"
#include "replay/stop.h"

// A block takes some microseconds: a stop is seen soon, and short phases are met.
enum { LANES = 8, BLOCK_STEPS = 2048 };
static const double CALIBRATION_SECONDS = 0.02;
enum { CALIBRATIONS = 3 };

static void multiply_and_add(void *argument)
{
    struct compute *compute = argument;
    uint64_t blocks = compute->blocks;
    double lanes[LANES] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (uint64_t block = 0; block < blocks; block++) {
        if (stopping()) {
            atomic_store(&compute->cut, true);
            break;
        }
        for (int step = 0; step < BLOCK_STEPS; step++)
            for (int lane = 0; lane < LANES; lane++)
                lanes[lane] = lanes[lane] * 0.999 + 0.001; // stays near 1: neither overflows nor gets slow
    }
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    volatile double result = sum; // volatile: the work cannot be left out
    (void)result;
}

bool compute_run(struct compute *compute)
{
    atomic_store(&compute->cut, false);
    team_begin(&compute->team, multiply_and_add);
    team_finish(&compute->team);
    return !atomic_load(&compute->cut);
}

static double timed_run(struct compute *compute)
{
    double start = clock_seconds();
    compute_run(compute);
    return clock_seconds() - start;
}

// On all threads at once, since they share the machine in the passes as well. The fastest run is the one least disturbed.
static void calibrate(struct compute *compute, double seconds)
{
    compute->blocks = 1;
    while (timed_run(compute) < CALIBRATION_SECONDS && !stopping())
        compute->blocks *= 2;
    double fastest = timed_run(compute);
    for (int i = 1; i < CALIBRATIONS; i++) {
        double taken = timed_run(compute);
        if (taken < fastest)
            fastest = taken;
    }
    double blocks = (double)compute->blocks * seconds / fastest;
    compute->blocks = stopping() || blocks < 1 ? 1 : (uint64_t)(blocks + 0.5); // stopping: nothing was measured
}

bool compute_start(struct compute *compute, double seconds, uint32_t n_threads, struct failure *failure)
{
    if (!team_start(&compute->team, n_threads, "moetier-compute", compute, 0, failure))
        return false;
    calibrate(compute, seconds);
    return true;
}

void compute_end(struct compute *compute)
{
    team_end(&compute->team);
}
