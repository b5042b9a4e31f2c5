#include "common/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

static void reserve(struct json *line, size_t more)
{
    if (line->capacity - line->length >= more)
        return;
    size_t capacity = line->capacity ? line->capacity : 1024;
    while (capacity - line->length < more)
        capacity *= 2;
    char *text = realloc(line->text, capacity);
    if (!text) {
        fprintf(stderr, "moetier: no memory for an event of %zu bytes\n", capacity);
        _exit(1);
    }
    line->text = text;
    line->capacity = capacity;
}

static void put(struct json *line, const char *text, size_t length)
{
    reserve(line, length);
    memcpy(line->text + line->length, text, length);
    line->length += length;
}

static void put_text(struct json *line, const char *text)
{
    put(line, text, strlen(text));
}

// The length of the valid UTF-8 sequence that starts here (RFC 3629: no overlong forms, no surrogates), 0 if there is none.
static size_t utf8_sequence(const unsigned char *at, size_t left)
{
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
        (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return length;
}

static void put_escaped(struct json *line, unsigned char byte)
{
    char escape[8];
    if (byte == '"' || byte == '\\')
        snprintf(escape, sizeof escape, "\\%c", byte);
    else if (byte == '\n')
        snprintf(escape, sizeof escape, "\\n");
    else if (byte == '\t')
        snprintf(escape, sizeof escape, "\\t");
    else
        snprintf(escape, sizeof escape, "\\u%04x", byte);
    put_text(line, escape);
}

// A byte that is no UTF-8 becomes U+FFFD: a lone surrogate would keep it, but strict parsers refuse the whole line.
static void put_quoted(struct json *line, const char *bytes, size_t length)
{
    const unsigned char *at = (const unsigned char *)bytes;
    const unsigned char *end = at + length;
    put_text(line, "\"");
    while (at < end) {
        const unsigned char *plain = at;
        while (at < end && *at >= ' ' && *at < 0x7f && *at != '"' && *at != '\\')
            at++;
        put(line, (const char *)plain, (size_t)(at - plain));
        if (at == end)
            break;
        size_t sequence = utf8_sequence(at, (size_t)(end - at));
        if (sequence > 1)
            put(line, (const char *)at, sequence);
        else if (sequence == 1)
            put_escaped(line, *at);
        else
            put_text(line, "\\ufffd");
        at += sequence ? sequence : 1;
    }
    put_text(line, "\"");
}

static void put_key(struct json *line, const char *key)
{
    if (line->comma)
        put_text(line, ",");
    line->comma = true;
    if (!key)
        return;
    put_quoted(line, key, strlen(key));
    put_text(line, ":");
}

void json_event(struct json *line, const char *name)
{
    line->length = 0;
    line->comma = false;
    put_text(line, "{");
    json_string(line, "event", name);
}

void json_bytes(struct json *line, const char *key, const char *bytes, size_t length)
{
    put_key(line, key);
    put_quoted(line, bytes, length);
}

void json_string(struct json *line, const char *key, const char *text)
{
    json_bytes(line, key, text, strlen(text));
}

// Written by hand: an event falls between two iterations, when the CPU's caches are cold, and printf's code is large.
static void put_digits(struct json *line, uint64_t value, int least_digits)
{
    char digits[24];
    int at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value || (int)sizeof digits - at < least_digits);
    put(line, digits + at, sizeof digits - (size_t)at);
}

void json_u64(struct json *line, const char *key, uint64_t value)
{
    put_key(line, key);
    put_digits(line, value, 1);
}

void json_i64(struct json *line, const char *key, int64_t value)
{
    put_key(line, key);
    if (value < 0)
        put_text(line, "-");
    put_digits(line, value < 0 ? -(uint64_t)value : (uint64_t)value, 1);
}

void json_seconds(struct json *line, const char *key, double seconds)
{
    uint64_t whole = (uint64_t)seconds;
    uint64_t nanoseconds = (uint64_t)((seconds - (double)whole) * 1e9);
    put_key(line, key);
    put_digits(line, whole, 1);
    put_text(line, ".");
    put_digits(line, nanoseconds, 9);
}

void json_bool(struct json *line, const char *key, bool value)
{
    put_key(line, key);
    put_text(line, value ? "true" : "false");
}

void json_null(struct json *line, const char *key)
{
    put_key(line, key);
    put_text(line, "null");
}

void json_hex64(struct json *line, const char *key, uint64_t value)
{
    char digits[20];
    snprintf(digits, sizeof digits, "%016" PRIx64, value);
    json_string(line, key, digits);
}

static void open_with(struct json *line, const char *key, const char *bracket)
{
    put_key(line, key);
    put_text(line, bracket);
    line->comma = false;
}

static void close_with(struct json *line, const char *bracket)
{
    put_text(line, bracket);
    line->comma = true;
}

void json_open_array(struct json *line, const char *key)
{
    open_with(line, key, "[");
}

void json_close_array(struct json *line)
{
    close_with(line, "]");
}

void json_open_object(struct json *line, const char *key)
{
    open_with(line, key, "{");
}

void json_close_object(struct json *line)
{
    close_with(line, "}");
}

static const double LONGEST_QUEUED = 0.1;
static struct json queue; // whole lines that have not left yet
static double queue_left;

static void write_out(const struct json *lines)
{
    for (size_t done = 0; done < lines->length;) {
        ssize_t written = write(STDOUT_FILENO, lines->text + done, lines->length - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            fprintf(stderr, "moetier: cannot write events to stdout: %s\n", strerror(errno));
            _exit(1);
        }
        done += (size_t)written;
    }
}

static void empty_queue(void)
{
    if (queue.length == 0)
        return;
    write_out(&queue);
    queue.length = 0;
}

void json_send(struct json *line)
{
    put_text(line, "}\n");
    empty_queue();
    write_out(line);
}

void json_send_soon(struct json *line)
{
    put_text(line, "}\n");
    put(&queue, line->text, line->length);
    double now = clock_seconds();
    if (now - queue_left < LONGEST_QUEUED)
        return;
    empty_queue();
    queue_left = now;
}

void json_free(struct json *line)
{
    free(line->text);
    *line = (struct json){0};
}
