// moetier-probe: the rates of this host's own tiers: memory copied, a file's pages read from the cache and from the device.
#include <signal.h>
#include <stdio.h>

#include "common/parent.h"
#include "probe/measure.h"

static void say_start(struct bench *bench)
{
    const struct request *request = bench->request;
    struct json *line = &bench->line;
    json_event(line, "start");
    json_string(line, "version", MOETIER_VERSION);
    json_u64(line, "bytes", request->bytes);
    json_u64(line, "block_bytes", request->block);
    json_u64(line, "threads", request->threads);
    json_u64(line, "repeats", request->repeats);
    request->llc_bytes ? json_u64(line, "llc_bytes", request->llc_bytes) : json_null(line, "llc_bytes");
    json_string(line, "copy", "memcpy");
    json_string(line, "residency_probe", probe_name(bench->file.probe));
    request->folder ? json_string(line, "file", bench->file.unnamed) : json_null(line, "file");
    json_send(line);
}

// A round visits all of them, so that what drifts on the host drifts for all. The cached read follows the one that admitted
// its pages: how a page was first read decides how fast a hit is.
static bool measure_all(struct bench *bench, struct failure *failure)
{
    const struct request *request = bench->request;
    enum what last = request->folder ? WHAT_CACHED : WHAT_COPY;
    for (uint32_t round = 0; round < request->repeats; round++)
        for (enum what what = WHAT_COPY; what <= last; what++)
            if (!bench_measure(bench, what, round, failure))
                return false;
    json_event(&bench->line, "end");
    json_send(&bench->line);
    return true;
}

int main(int argc, char **argv)
{
    static struct request request;
    static struct bench bench;
    static struct failure failure;
    die_with_parent(SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); // a file that may not grow is a message, not an end without one
    if (!request_parse(&request, argc, argv, &failure)) {
        request_free(&request);
    } else if (request.help || request.version) {
        request.help ? request_help() : (void)puts("moetier-probe " MOETIER_VERSION);
        request_free(&request);
        return EXIT_DONE;
    } else {
        if (bench_open(&bench, &request, &failure)) {
            say_start(&bench);
            measure_all(&bench, &failure);
        }
        bench_close(&bench);
        request_free(&request);
    }
    if (!failure.code)
        return EXIT_DONE;
    failure_report(&failure, "moetier-probe");
    return (int)failure.exit;
}
