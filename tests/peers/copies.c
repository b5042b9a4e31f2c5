// What copying experts can cost at the least: memcpy from one table of experts to 64 destinations, in the order of a file.
//
//   copies SEQUENCE N_EXPERTS EXPERT_BYTES N_DESTINATIONS N_THREADS N_PASSES      (SEQUENCE: u32 indices, nothing else)
//
// Prints the CPU time of each pass over the sequence. The memory is as the replayer's: huge pages, touched before; each thread
// takes the next index and has destinations of its own.
#include <assert.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static const uint64_t HUGE = 2u << 20;

static uint32_t *sequence;
static uint64_t n_accesses, expert_bytes, n_destinations, n_threads, n_passes;
static char *experts, *destinations;
static pthread_barrier_t border;
static _Alignas(128) atomic_uint_least64_t next;

struct copier {
    _Alignas(128) uint64_t id;
    pthread_t thread;
    uint64_t at; // its next destination
    double *cpu_seconds; // of each pass
};

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static char *huge(uint64_t bytes)
{
    char *base = mmap(NULL, bytes + 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(base != MAP_FAILED);
    char *memory = (char *)(((uintptr_t)base + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    madvise(memory, (bytes + HUGE - 1) / HUGE * HUGE, MADV_HUGEPAGE);
    return memory;
}

static uint64_t huge_kib(void)
{
    FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
    unsigned long kib = 0;
    char line[256];
    while (rollup && fgets(line, sizeof line, rollup) && sscanf(line, "AnonHugePages: %lu", &kib) != 1)
        ;
    if (rollup)
        fclose(rollup);
    return kib;
}

static void pass(struct copier *copier, uint64_t first, uint64_t count)
{
    for (;;) {
        uint64_t access = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
        if (access >= n_accesses)
            break;
        memcpy(destinations + (first + copier->at) * expert_bytes, experts + sequence[access] * expert_bytes, expert_bytes);
        copier->at = copier->at + 1 == count ? 0 : copier->at + 1;
    }
}

static void *copy(void *argument)
{
    struct copier *copier = argument;
    uint64_t first = n_destinations * copier->id / n_threads;
    uint64_t count = n_destinations * (copier->id + 1) / n_threads - first;
    memset(destinations + first * expert_bytes, 1, count * expert_bytes); // by its own thread, so that the memory is near it
    for (uint64_t i = 0; i < n_passes; i++) {
        if (pthread_barrier_wait(&border) == PTHREAD_BARRIER_SERIAL_THREAD)
            atomic_store(&next, 0);
        pthread_barrier_wait(&border);
        double before = cpu_seconds();
        pass(copier, first, count);
        copier->cpu_seconds[i] = cpu_seconds() - before;
    }
    return NULL;
}

static void load(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert(file);
    fseek(file, 0, SEEK_END);
    n_accesses = (uint64_t)ftell(file) / sizeof *sequence;
    rewind(file);
    sequence = malloc(n_accesses * sizeof *sequence);
    assert(sequence && fread(sequence, sizeof *sequence, n_accesses, file) == n_accesses);
    fclose(file);
}

int main(int argc, char **argv)
{
    assert(argc == 7);
    load(argv[1]);
    uint64_t n_experts = strtoull(argv[2], NULL, 10);
    expert_bytes = strtoull(argv[3], NULL, 10);
    n_destinations = strtoull(argv[4], NULL, 10);
    n_threads = strtoull(argv[5], NULL, 10);
    n_passes = strtoull(argv[6], NULL, 10);
    experts = huge(n_experts * expert_bytes);
    destinations = huge(n_destinations * expert_bytes);
    memset(experts, 1, n_experts * expert_bytes);
    pthread_barrier_init(&border, NULL, (unsigned)n_threads);
    struct copier *copiers = aligned_alloc(_Alignof(struct copier), n_threads * sizeof *copiers);
    assert(copiers);
    for (uint64_t id = 0; id < n_threads; id++) {
        copiers[id] = (struct copier){.id = id, .cpu_seconds = calloc(n_passes, sizeof(double))};
        assert(copiers[id].cpu_seconds);
        if (id > 0 && pthread_create(&copiers[id].thread, NULL, copy, &copiers[id]) != 0)
            abort();
    }
    copy(&copiers[0]);
    for (uint64_t id = 1; id < n_threads; id++)
        pthread_join(copiers[id].thread, NULL);
    printf("{\"routine\": \"memcpy (glibc %s)\", \"huge_bytes\": %ju, \"bytes\": %ju, \"cpu_seconds\": [",
           gnu_get_libc_version(), (uintmax_t)(huge_kib() * 1024), (uintmax_t)(n_accesses * expert_bytes));
    for (uint64_t i = 0; i < n_passes; i++) {
        double sum = 0;
        for (uint64_t id = 0; id < n_threads; id++)
            sum += copiers[id].cpu_seconds[i];
        printf("%s%.9f", i ? ", " : "", sum);
    }
    puts("]}");
    return 0;
}
