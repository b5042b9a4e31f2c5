#include "replay/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"
#include "replay/fds.h"
#include "replay/selftest.h"

// The smallest of the first files, so that little is dropped.
static uint32_t test_file(const struct plan *plan)
{
    uint32_t smallest = 0;
    for (uint32_t file = 1; file < plan->header.n_files && file < 64; file++) {
        uint64_t size = plan->files[file].size_bytes;
        if (size > 0 && (plan->files[smallest].size_bytes == 0 || size < plan->files[smallest].size_bytes))
            smallest = file;
    }
    return smallest;
}

static bool usable(enum probe probe, enum truth truth)
{
    // cachestat refuses where it may not answer; mincore lies, so it must be seen to tell the truth.
    return truth == TRUTH_TOLD || (probe == PROBE_CACHESTAT && truth == TRUTH_UNPROVABLE);
}

static bool try_probe(struct probe_choice *choice, enum probe probe, int fd, uint64_t size)
{
    struct verdict verdict = selftest(probe, fd, size);
    size_t length = strlen(choice->note);
    snprintf(choice->note + length, sizeof choice->note - length, "%s%s%s", length ? "; " : "", verdict.note,
             verdict.truth == TRUTH_UNPROVABLE ? " (its pages cannot be dropped: not proved)" : "");
    if (!usable(probe, verdict.truth))
        return false;
    choice->probe = probe;
    return true;
}

bool probe_choose(struct probe_choice *choice, enum hits hits, const struct pool *pool, struct failure *failure)
{
    *choice = (struct probe_choice){.probe = PROBE_NONE};
    uint32_t file = test_file(pool->plan);
    int fd = pool_open(pool, file, 0, failure);
    if (fd < 0)
        return false;
    uint64_t size = pool->plan->files[file].size_bytes;
    bool found = (hits != HITS_MINCORE && try_probe(choice, PROBE_CACHESTAT, fd, size)) ||
                 (hits != HITS_CACHESTAT && try_probe(choice, PROBE_MINCORE, fd, size));
    close(fd);
    if (!found && (hits == HITS_CACHESTAT || hits == HITS_MINCORE))
        return failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "--hits %s does not work on this pool: %s",
                           hits == HITS_MINCORE ? "mincore" : "cachestat", choice->note);
    return true;
}

static bool residency_failed(enum probe probe, const struct pool *pool, uint32_t file, int64_t error, struct failure *failure)
{
    return failure_set(failure, EXIT_FAILED, "residency", "%s fails on %.800s: %s", probe_name(probe),
                       plan_name_file(pool->plan, file, failure), strerror((int)-error));
}

bool pool_resident_bytes(enum probe probe, const struct pool *pool, uint64_t *bytes, struct failure *failure)
{
    const struct plan_extent *run = pool->plan->runs, *end = run + pool->plan->n_runs;
    *bytes = 0;
    while (run < end) { // file by file, as the runs are
        uint32_t file = run->file;
        int fd = pool_open(pool, file, 0, failure);
        if (fd < 0)
            return false;
        int64_t resident = 0;
        for (; run < end && run->file == file && resident >= 0; run++) {
            resident = resident_bytes(probe, fd, NULL, run->offset, run->length);
            *bytes += resident > 0 ? (uint64_t)resident : 0;
        }
        close(fd);
        if (resident < 0)
            return residency_failed(probe, pool, file, resident, failure);
    }
    return true;
}

bool experts_resident_bytes(enum probe probe, const struct pool *pool, uint64_t *bytes, struct failure *failure)
{
    enum { OPEN_FILES = 16 };
    const struct plan *plan = pool->plan;
    struct fds fds;
    bool good = fds_open(&fds, pool, OPEN_FILES, 0, false, failure);
    for (uint64_t i = 0; good && i < plan->header.n_experts; i++) {
        const struct plan_expert *expert = &plan->experts[i];
        bytes[i] = 0;
        for (uint32_t e = 0; good && e < expert->n_extents; e++) {
            const struct plan_extent *extent = &plan->extents[expert->first_extent + e];
            int fd = fds_get(&fds, extent->file, failure);
            int64_t part = fd < 0 ? 0 : resident_bytes(probe, fd, NULL, extent->offset, extent->length);
            good = fd >= 0 && (part >= 0 || residency_failed(probe, pool, extent->file, part, failure));
            bytes[i] += good ? (uint64_t)part : 0;
        }
    }
    fds_close(&fds);
    return good;
}

static void print_verdict(struct json *line, enum probe probe, struct verdict verdict)
{
    static const char *const truths[] = {"told", "unprovable", "refused"};
    json_open_object(line, probe_name(probe));
    json_bool(line, "usable", usable(probe, verdict.truth));
    json_string(line, "truth", truths[verdict.truth]);
    json_string(line, "note", verdict.note);
    json_close_object(line);
}

bool probe_self_test(const char *path, struct failure *failure)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        failure_path(failure, path);
        return failure_set(failure, EXIT_FAILED, "open", "%.800s cannot be tested: %s", path,
                           fd < 0 ? strerror(error) : "expected a regular file");
    }
    struct json line = {0};
    json_event(&line, "self_test");
    json_string(&line, "path", path);
    print_verdict(&line, PROBE_CACHESTAT, selftest(PROBE_CACHESTAT, fd, (uint64_t)status.st_size));
    print_verdict(&line, PROBE_MINCORE, selftest(PROBE_MINCORE, fd, (uint64_t)status.st_size));
    json_send(&line);
    json_free(&line);
    close(fd);
    return true;
}
