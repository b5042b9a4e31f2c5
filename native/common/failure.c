#include "common/failure.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"

bool failure_set(struct failure *failure, enum exit_code exit, const char *code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure->message, sizeof failure->message, format, arguments);
    va_end(arguments);
    failure->exit = exit;
    failure->code = code;
    return false;
}

void failure_path(struct failure *failure, const char *path)
{
    size_t length = strnlen(path, sizeof failure->path - 1);
    memcpy(failure->path, path, length);
    failure->path[length] = '\0';
}

void failure_expert(struct failure *failure, uint32_t layer, uint32_t expert)
{
    char message[sizeof failure->message];
    memcpy(message, failure->message, sizeof message);
    failure_set(failure, failure->exit, failure->code, "layer %" PRIu32 " expert %" PRIu32 ": %.1400s", layer, expert, message);
    failure->has_expert = true;
    failure->layer = layer;
    failure->expert = expert;
}

void failure_report(const struct failure *failure, const char *program)
{
    // One line whatever a path holds: people and log files read it.
    char message[sizeof failure->message];
    snprintf(message, sizeof message, "%s", failure->message);
    for (char *at = message; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = '?';
    fprintf(stderr, "%s: %s\n", program, message);

    struct json line = {0};
    json_event(&line, "error");
    json_string(&line, "code", failure->code);
    json_string(&line, "message", failure->message);
    if (failure->has_expert) {
        json_u64(&line, "layer", failure->layer);
        json_u64(&line, "expert", failure->expert);
    }
    if (failure->path[0])
        json_string(&line, "path", failure->path);
    json_send(&line);
    json_free(&line);
}
