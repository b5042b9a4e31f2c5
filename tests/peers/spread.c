// Preloaded into fio: its reads of whole experts go to SPREAD_SLOTS destinations in turn, huge pages that were touched before.
// fio itself reads everything into one buffer a job, which stays in a CPU's cache: where the processor copies (a virtual disk
// does), such reads are faster than any that are kept. Says at the end how many reads it placed.
#include <assert.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static const size_t HUGE = 2u << 20, EXPERT = 1u << 20;

static char *slots;
static uint64_t n_slots;
static atomic_uint_least64_t next;
static ssize_t (*real_pread)(int, void *, size_t, off_t);

__attribute__((constructor)) static void prepare(void)
{
    const char *asked = getenv("SPREAD_SLOTS");
    *(void **)&real_pread = dlsym(RTLD_NEXT, "pread64");
    assert(real_pread && asked);
    n_slots = strtoull(asked, NULL, 10);
    char *base = mmap(NULL, n_slots * EXPERT + 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(n_slots && base != MAP_FAILED);
    slots = (char *)(((uintptr_t)base + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    madvise(slots, (n_slots * EXPERT + HUGE - 1) / HUGE * HUGE, MADV_HUGEPAGE);
    memset(slots, 1, n_slots * EXPERT);
}

__attribute__((destructor)) static void report(void)
{
    fprintf(stderr, "spread: %ju reads\n", (uintmax_t)atomic_load(&next));
}

ssize_t pread64(int fd, void *to, size_t length, off_t offset)
{
    if (length == EXPERT)
        to = slots + atomic_fetch_add(&next, 1) % n_slots * EXPERT;
    return real_pread(fd, to, length, offset);
}
