#include "replay/capture.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "replay/stop.h"

static const double LONGEST_WAIT = 2.0;
static const double WAIT_STEP = 0.001;

static bool is_idle(struct buffer *buffer, const char *path)
{
    unsigned long reads, writes;
    return buffer_read(buffer, path) == 0 && sscanf(buffer->bytes, "%lu %lu", &reads, &writes) == 2 && reads == 0 && writes == 0;
}

// Reads still in flight would be counted by the device after the capture. Returns whether all devices came to rest.
static bool wait_for_devices(struct capture *capture, double *waited)
{
    double start = clock_seconds();
    bool idle = false;
    for (;;) {
        idle = true;
        for (size_t i = 0; i < capture->inflights->count; i++)
            idle = is_idle(&capture->text, capture->inflights->items[i]) && idle;
        *waited = clock_seconds() - start;
        if (idle || *waited >= LONGEST_WAIT || stopping())
            return idle;
        sleep_seconds(WAIT_STEP);
    }
}

static void put_file(struct capture *capture, const char *path)
{
    int error = buffer_read(&capture->text, path);
    json_open_object(&capture->line, NULL);
    json_string(&capture->line, "path", path);
    if (error) {
        json_u64(&capture->line, "errno", (uint64_t)error);
        json_string(&capture->line, "error", strerror(error));
    } else {
        json_bytes(&capture->line, "text", capture->text.bytes, capture->text.length);
    }
    json_close_object(&capture->line);
}

static void put_files(struct capture *capture, const struct names *files)
{
    json_open_array(&capture->line, "files");
    for (size_t i = 0; i < files->count; i++)
        put_file(capture, files->items[i]);
    json_close_array(&capture->line);
}

void capture_take(struct capture *capture, const char *pass, const char *moment)
{
    double waited = 0;
    bool idle = wait_for_devices(capture, &waited);
    char at[256];
    snprintf(at, sizeof at, "%.200s:%s", pass, moment);
    json_event(&capture->line, "capture");
    json_string(&capture->line, "at", at);
    json_seconds(&capture->line, "clock_seconds", clock_seconds());
    json_seconds(&capture->line, "inflight_waited_seconds", waited);
    if (capture->inflights->count)
        json_bool(&capture->line, "inflight_zero", idle);
    else
        json_null(&capture->line, "inflight_zero"); // nobody looked
    put_files(capture, capture->files);
    json_send(&capture->line);
}

void capture_sample(struct capture *capture, const struct names *files, const char *pass, uint64_t iteration)
{
    json_event(&capture->line, "sample");
    json_string(&capture->line, "pass", pass);
    json_u64(&capture->line, "iteration", iteration);
    json_seconds(&capture->line, "clock_seconds", clock_seconds());
    put_files(capture, files);
    json_send_soon(&capture->line);
}

void capture_free(struct capture *capture)
{
    buffer_free(&capture->text);
    json_free(&capture->line);
}
