#include "probe/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"

const char *const what_names[] = {"copy", "direct", "admitted", "cached", NULL};

// A request beyond half of what is available would push others out of memory.
static bool need_memory(const struct request *request, struct failure *failure)
{
    uint64_t available = mem_available_bytes();
    if (request->bytes <= available / 4)
        return true;
    return failure_set(failure, EXIT_FAILED, "memory", "two buffers of %" PRIu64 " bytes: %" PRIu64 " bytes are available; expected"
                       " twice the buffers, or a smaller --bytes", request->bytes, available);
}

// splitmix64: what no device can compress or find twice.
static void fill(const struct region *region)
{
    uint64_t *words = (uint64_t *)(void *)region->memory;
    uint64_t state = 0x243f6a8885a308d3;
    for (uint64_t i = 0; i < region->bytes / sizeof *words; i++) {
        uint64_t z = (state += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        words[i] = z ^ (z >> 31);
    }
}

static bool start_workers(struct bench *bench, struct failure *failure)
{
    const struct request *request = bench->request;
    uint64_t blocks = request->bytes / request->block;
    bench->workers = calloc(request->threads, sizeof *bench->workers);
    if (!bench->workers)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for %" PRIu32 " threads", request->threads);
    for (uint64_t i = 0; i < request->threads; i++)
        bench->workers[i] = (struct worker){.bench = bench, .first = i * blocks / request->threads,
                                            .end = (i + 1) * blocks / request->threads, .fd = -1};
    return team_start(&bench->team, request->threads, "probe", bench->workers, sizeof *bench->workers, failure);
}

bool bench_open(struct bench *bench, const struct request *request, struct failure *failure)
{
    *bench = (struct bench){.request = request, .file = {.fd = -1}, .counters = {.process_fd = -1}};
    if (!need_memory(request, failure) || !region_map(&bench->source, request->bytes, "the source", failure) ||
        !region_map(&bench->destinations, request->bytes, "the destinations", failure) ||
        !counters_open(&bench->counters, &request->device_stats, failure))
        return false;
    fill(&bench->source);
    region_touch(&bench->destinations);
    if (request->folder && !file_make(&bench->file, request->folder, bench->source.memory, request->bytes, failure))
        return false;
    return start_workers(bench, failure);
}

static int read_block(int fd, char *destination, uint64_t offset, uint64_t length)
{
    for (uint64_t done = 0; done < length;) {
        ssize_t got = pread(fd, destination + done, length - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : ENODATA;
        done += (uint64_t)got;
    }
    return 0;
}

static void work(void *argument)
{
    struct worker *worker = argument;
    const struct bench *bench = worker->bench;
    uint64_t block = bench->request->block;
    worker->error = 0;
    for (uint64_t i = worker->first; i < worker->end && !worker->error; i++) {
        char *destination = bench->destinations.memory + i * block;
        if (bench->what == WHAT_COPY)
            memcpy(destination, bench->source.memory + i * block, block);
        else
            worker->error = read_block(worker->fd, destination, i * block, block);
    }
}

static void close_files(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->request->threads; i++) {
        if (bench->workers[i].fd >= 0)
            close(bench->workers[i].fd);
        bench->workers[i].fd = -1;
    }
}

// Each thread reads through a descriptor of its own: the kernel keeps one read-ahead state for each.
static int open_files(struct bench *bench)
{
    int flags = bench->what == WHAT_DIRECT ? O_DIRECT : 0;
    for (uint32_t i = 0; bench->what != WHAT_COPY && i < bench->request->threads; i++) {
        bench->workers[i].fd = file_reopen(&bench->file, flags);
        if (bench->workers[i].fd < 0) {
            int error = errno;
            close_files(bench);
            return error;
        }
    }
    return 0;
}

static void put_count(struct json *line, const char *key, struct count count)
{
    count.known ? json_u64(line, key, count.bytes) : json_null(line, key);
}

static struct count resident(const struct bench *bench)
{
    struct count count = {0};
    count.known = bench->what != WHAT_COPY && file_resident(&bench->file, &count.bytes);
    return count;
}

static void report(struct bench *bench, uint32_t round, double seconds, struct count before)
{
    struct json *line = &bench->line;
    json_event(line, "measured");
    json_string(line, "what", what_names[bench->what]);
    json_u64(line, "round", round);
    json_u64(line, "bytes", bench->request->bytes);
    json_seconds(line, "seconds", seconds);
    json_open_array(line, "device_bytes");
    for (size_t i = 0; i < bench->counters.n_devices; i++)
        put_count(line, NULL, counters_delta(&bench->counters, i));
    json_close_array(line);
    put_count(line, "process_bytes", counters_delta(&bench->counters, bench->counters.n_devices));
    put_count(line, "resident_before_bytes", before);
    put_count(line, "resident_after_bytes", resident(bench));
    json_send(line);
}

static void say_absent(struct bench *bench, int error)
{
    bench->no_direct = true;
    json_event(&bench->line, "absent");
    json_string(&bench->line, "what", what_names[bench->what]);
    json_string(&bench->line, "why", strerror(error));
    json_send(&bench->line);
}

static bool broken(const struct bench *bench, int error, struct failure *failure)
{
    failure_path(failure, bench->request->folder);
    return failure_set(failure, EXIT_FAILED, "read", "%s read of the file in %.800s: %s", what_names[bench->what],
                       bench->request->folder, strerror(error));
}

static bool delivered(struct bench *bench, struct failure *failure)
{
    for (uint32_t i = 0; i < bench->request->threads; i++)
        if (bench->workers[i].error)
            return broken(bench, bench->workers[i].error, failure);
    if (memcmp(bench->source.memory, bench->destinations.memory, bench->request->bytes) == 0)
        return true;
    return failure_set(failure, EXIT_FAILED, "content", "%s: the bytes that came are not those that were written",
                       what_names[bench->what]);
}

bool bench_measure(struct bench *bench, enum what what, uint32_t round, struct failure *failure)
{
    bench->what = what;
    if (what == WHAT_DIRECT && bench->no_direct)
        return true;
    if (what == WHAT_DIRECT || what == WHAT_ADMITTED)
        file_drop(&bench->file);
    int error = open_files(bench);
    if (error == EINVAL && what == WHAT_DIRECT) {
        say_absent(bench, error);
        return true;
    }
    if (error)
        return broken(bench, error, failure);
    memset(bench->destinations.memory, 0, bench->request->bytes); // what came the last time proves nothing
    struct count before = resident(bench);
    counters_read(&bench->counters);
    double began = clock_seconds();
    team_begin(&bench->team, work);
    team_finish(&bench->team);
    double seconds = clock_seconds() - began;
    counters_read(&bench->counters);
    close_files(bench);
    if (what == WHAT_DIRECT && bench->workers[0].error == EINVAL) { // opened, and then not read
        say_absent(bench, EINVAL);
        return true;
    }
    if (!delivered(bench, failure))
        return false;
    report(bench, round, seconds, before);
    return true;
}

void bench_close(struct bench *bench)
{
    team_end(&bench->team);
    free(bench->workers);
    counters_close(&bench->counters);
    file_close(&bench->file);
    region_unmap(&bench->destinations);
    region_unmap(&bench->source);
    json_free(&bench->line);
}
