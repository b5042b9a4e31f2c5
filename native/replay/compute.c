#include "replay/compute.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "replay/stop.h"
#include "replay/threads.h"

// A block takes some microseconds: a stop is seen soon, and short phases are met.
enum { LANES = 8, BLOCK_STEPS = 2048 };
static const double CALIBRATION_SECONDS = 0.02;
enum { CALIBRATIONS = 3 };

static double multiply_and_add(uint64_t blocks, atomic_bool *cut)
{
    double lanes[LANES] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (uint64_t block = 0; block < blocks; block++) {
        if (stopping()) {
            atomic_store(cut, true);
            break;
        }
        for (int step = 0; step < BLOCK_STEPS; step++)
            for (int lane = 0; lane < LANES; lane++)
                lanes[lane] = lanes[lane] * 0.999 + 0.001; // stays near 1: neither overflows nor gets slow
    }
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

static void *thread_main(void *argument)
{
    struct compute_thread *thread = argument;
    struct compute *compute = thread->compute;
    for (;;) {
        while (sem_wait(&thread->start) != 0)
            ; // a debugger's signal
        if (compute->quit)
            return NULL;
        volatile double result = multiply_and_add(compute->blocks, &compute->cut); // volatile: the work cannot be left out
        (void)result;
        sem_post(&compute->finish);
    }
}

bool compute_run(struct compute *compute)
{
    atomic_store(&compute->cut, false);
    for (uint32_t i = 0; i < compute->n_threads; i++)
        sem_post(&compute->threads[i].start);
    for (uint32_t i = 0; i < compute->n_threads; i++)
        while (sem_wait(&compute->finish) != 0)
            ; // the signal that asks for a stop: the threads see it too
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
    compute->threads = aligned_alloc(_Alignof(struct compute_thread), n_threads * sizeof *compute->threads);
    if (!compute->threads)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for the compute threads");
    memset(compute->threads, 0, n_threads * sizeof *compute->threads);
    sem_init(&compute->finish, 0, 0);
    for (uint32_t i = 0; i < n_threads; i++) {
        struct compute_thread *thread = &compute->threads[i];
        thread->compute = compute;
        sem_init(&thread->start, 0, 0);
        if (!thread_start(&thread->thread, "moetier-compute", thread_main, thread, failure))
            return false;
        compute->n_threads = i + 1;
    }
    calibrate(compute, seconds);
    return true;
}

void compute_end(struct compute *compute)
{
    compute->quit = true;
    for (uint32_t i = 0; i < compute->n_threads; i++) {
        sem_post(&compute->threads[i].start);
        pthread_join(compute->threads[i].thread, NULL);
    }
    free(compute->threads);
    compute->threads = NULL;
}
