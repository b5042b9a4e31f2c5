#include "replay/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/procfile.h"
#include "replay/plan_check.h"

static bool unreadable(struct failure *failure, const char *path, int error)
{
    failure_path(failure, path);
    return failure_set(failure, EXIT_USAGE, "plan", "plan %.800s cannot be read: %s", path, strerror(error));
}

static void place_sections(struct plan *plan)
{
    const struct plan_header *header = &plan->header;
    plan->iterations = (const uint64_t *)(plan->memory + header->off_iterations);
    plan->sequence = (const uint32_t *)(plan->memory + header->off_sequence);
    plan->experts = (const struct plan_expert *)(plan->memory + header->off_experts);
    plan->extents = (const struct plan_extent *)(plan->memory + header->off_extents);
    plan->files = (const struct plan_file *)(plan->memory + header->off_files);
    plan->strings = plan->memory + header->off_strings;
}

static int by_place(const void *left, const void *right)
{
    const struct plan_extent *a = left, *b = right;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static bool find_runs(struct plan *plan, struct failure *failure)
{
    uint64_t n = plan->header.n_extents;
    plan->runs = malloc((n ? n : 1) * sizeof *plan->runs);
    if (!plan->runs)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for %" PRIu64 " extents", n);
    if (n)
        memcpy(plan->runs, plan->extents, n * sizeof *plan->runs);
    qsort(plan->runs, n, sizeof *plan->runs, by_place);
    for (uint64_t i = 0; i < n; i++) {
        struct plan_extent next = plan->runs[i];
        struct plan_extent *last = plan->n_runs ? &plan->runs[plan->n_runs - 1] : NULL;
        if (!last || last->file != next.file || next.offset > last->offset + last->length)
            plan->runs[plan->n_runs++] = next;
        else if (next.offset + next.length > last->offset + last->length)
            last->length = next.offset + next.length - last->offset;
    }
    return true;
}

// The header is checked before the body is read: a foreign file of a terabyte is refused by its first 160 bytes.
static bool load(struct plan *plan, const char *path, int fd, struct failure *failure)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return unreadable(failure, path, errno);
    if (!S_ISREG(status.st_mode) || status.st_size < (off_t)sizeof plan->header) {
        failure_path(failure, path);
        return failure_set(failure, EXIT_USAGE, "plan", "plan %.800s has %jd bytes, expected a file of at least %zu", path,
                           (intmax_t)status.st_size, sizeof plan->header);
    }
    if (!read_exactly(fd, (char *)&plan->header, sizeof plan->header))
        return unreadable(failure, path, errno);
    if (!plan_check_header(&plan->header, (uint64_t)status.st_size, path, failure))
        return false;
    plan->memory = malloc(plan->header.file_bytes);
    if (!plan->memory)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for the plan: %" PRIu64 " bytes asked",
                           plan->header.file_bytes);
    if (!read_exactly(fd, plan->memory, plan->header.file_bytes))
        return unreadable(failure, path, errno);
    place_sections(plan);
    return plan_check_body(plan, path, failure) && find_runs(plan, failure);
}

bool plan_load(struct plan *plan, const char *path, struct failure *failure)
{
    // Non-blocking: a pipe is refused, not waited for.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return unreadable(failure, path, errno);
    bool loaded = load(plan, path, fd, failure);
    fdatasync(fd); // dirty pages (the plan was just written) cannot be dropped
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return loaded;
}

void plan_free(struct plan *plan)
{
    free(plan->memory);
    free(plan->runs);
    *plan = (struct plan){0};
}

void plan_file_path(const struct plan *plan, uint32_t file, char path[PATH_MAX])
{
    const struct plan_file *entry = &plan->files[file];
    memcpy(path, plan->strings + entry->string_offset, entry->string_bytes);
    path[entry->string_bytes] = '\0';
}

const char *plan_name_file(const struct plan *plan, uint32_t file, struct failure *failure)
{
    plan_file_path(plan, file, failure->path);
    return failure->path;
}

uint64_t plan_pool_bytes(const struct plan *plan)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < plan->header.n_files; i++)
        bytes += plan->files[i].size_bytes;
    return bytes;
}

uint64_t plan_experts_bytes(const struct plan *plan)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < plan->n_runs; i++)
        bytes += plan->runs[i].length;
    return bytes;
}
