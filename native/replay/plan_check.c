#include "replay/plan_check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "replay/crc32.h"

// Of a file and of an expert: rounded up to pages, a few of them still add up.
static const uint64_t MOST_BYTES = UINT64_C(1) << 62;

struct check {
    const char *path;
    struct failure *failure;
};

static bool bad(const struct check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool bad(const struct check *check, const char *format, ...)
{
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    failure_path(check->failure, check->path);
    return failure_set(check->failure, EXIT_USAGE, "plan", "plan %.800s: %s", check->path, reason);
}

static bool check_section(const struct check *check, const struct plan_header *header, const char *name, uint64_t offset,
                          uint64_t count, uint64_t item_bytes)
{
    uint64_t bytes;
    if (offset % 8 != 0)
        return bad(check, "section %s starts at byte %" PRIu64 ", expected a multiple of 8", name, offset);
    if (__builtin_mul_overflow(count, item_bytes, &bytes) || offset < sizeof *header || offset > header->file_bytes ||
        bytes > header->file_bytes - offset)
        return bad(check, "section %s (%" PRIu64 " items of %" PRIu64 " bytes from byte %" PRIu64
                   ") leaves the file of %" PRIu64 " bytes", name, count, item_bytes, offset, header->file_bytes);
    return true;
}

static bool check_sections(const struct check *check, const struct plan_header *header)
{
    if (header->n_iterations == 0 || header->n_accesses == 0)
        return bad(check, "%" PRIu64 " iterations and %" PRIu64 " accesses, expected at least one of each",
                   header->n_iterations, header->n_accesses);
    if (header->n_iterations == UINT64_MAX || header->n_experts > UINT32_MAX || header->n_files > UINT32_MAX)
        return bad(check, "more iterations, experts or files than a plan can index");
    return check_section(check, header, "iterations", header->off_iterations, header->n_iterations + 1, 8) &&
           check_section(check, header, "sequence", header->off_sequence, header->n_accesses, 4) &&
           check_section(check, header, "experts", header->off_experts, header->n_experts, sizeof(struct plan_expert)) &&
           check_section(check, header, "extents", header->off_extents, header->n_extents, sizeof(struct plan_extent)) &&
           check_section(check, header, "files", header->off_files, header->n_files, sizeof(struct plan_file)) &&
           check_section(check, header, "strings", header->off_strings, header->strings_bytes, 1);
}

bool plan_check_header(const struct plan_header *header, uint64_t file_bytes, const char *path, struct failure *failure)
{
    const struct check check = {path, failure};
    if (memcmp(header->magic, "MOEPLAN", 8) != 0)
        return bad(&check, "not a replay plan (it does not start with MOEPLAN)");
    if (header->version != 1)
        return bad(&check, "version %" PRIu32 ", this program reads version 1", header->version);
    if (header->header_bytes != sizeof *header)
        return bad(&check, "header of %" PRIu32 " bytes, expected %zu", header->header_bytes, sizeof *header);
    if (header->file_bytes != file_bytes)
        return bad(&check, "the file has %" PRIu64 " bytes, its header says %" PRIu64 ": truncated, or still being written",
                   file_bytes, header->file_bytes);
    uint32_t crc = crc32_of(header, offsetof(struct plan_header, crc_header));
    if (crc != header->crc_header)
        return bad(&check, "the header's CRC is %08" PRIx32 ", it says %08" PRIx32 ": damaged", crc, header->crc_header);
    if (header->page_bytes != PAGE_BYTES)
        return bad(&check, "pages of %" PRIu32 " bytes, expected %d", header->page_bytes, PAGE_BYTES);
    if (header->flags & ~(uint32_t)PLAN_KNOWN_FLAGS)
        return bad(&check, "unknown flags %#" PRIx32, header->flags & ~(uint32_t)PLAN_KNOWN_FLAGS);
    if (header->reserved_1 || header->reserved_2)
        return bad(&check, "reserved fields are not zero");
    return check_sections(&check, header);
}

bool plan_path_leaves_root(const char *text, size_t length)
{
    if (text[0] == '/')
        return true;
    for (size_t at = 0; at < length;) {
        const char *slash = memchr(text + at, '/', length - at);
        size_t part = slash ? (size_t)(slash - text) - at : length - at;
        if (part == 2 && memcmp(text + at, "..", 2) == 0)
            return true;
        at += part + 1;
    }
    return false;
}

static bool check_files(const struct check *check, const struct plan *plan)
{
    uint64_t strings_bytes = plan->header.strings_bytes;
    for (uint64_t i = 0; i < plan->header.n_files; i++) {
        const struct plan_file *file = &plan->files[i];
        if (file->string_offset > strings_bytes || file->string_bytes > strings_bytes - file->string_offset)
            return bad(check, "the path of file %" PRIu64 " lies outside the strings", i);
        if (file->size_bytes > MOST_BYTES)
            return bad(check, "file %" PRIu64 " has %" PRIu64 " bytes, %" PRIu64 " at most", i, file->size_bytes, MOST_BYTES);
        const char *text = plan->strings + file->string_offset;
        if (file->string_bytes == 0 || file->string_bytes >= PATH_MAX || memchr(text, '\0', file->string_bytes))
            return bad(check, "the path of file %" PRIu64 " is empty, holds a NUL or has more than %d bytes", i, PATH_MAX - 1);
        if (!(plan->header.flags & PLAN_ANY_PATH) && plan_path_leaves_root(text, file->string_bytes))
            return bad(check, "the path of file %" PRIu64 " (%.*s) leaves the pool's folder", i,
                       (int)(file->string_bytes > 300 ? 300 : file->string_bytes), text);
    }
    return true;
}

static bool check_extents(const struct check *check, const struct plan *plan)
{
    for (uint64_t i = 0; i < plan->header.n_extents; i++) {
        const struct plan_extent *extent = &plan->extents[i];
        if (extent->file >= plan->header.n_files)
            return bad(check, "extent %" PRIu64 " is in file %" PRIu32 " of %" PRIu64, i, extent->file, plan->header.n_files);
        uint64_t size = plan->files[extent->file].size_bytes;
        if (extent->length == 0 || extent->offset > size || extent->length > size - extent->offset)
            return bad(check, "extent %" PRIu64 " (%" PRIu64 " bytes from %" PRIu64 ") is empty or leaves its file of %" PRIu64
                       " bytes", i, extent->length, extent->offset, size);
    }
    return true;
}

static bool check_experts(const struct check *check, const struct plan *plan)
{
    uint64_t n_extents = plan->header.n_extents;
    for (uint64_t i = 0; i < plan->header.n_experts; i++) {
        const struct plan_expert *expert = &plan->experts[i];
        if (expert->n_extents == 0 || expert->first_extent > n_extents || expert->n_extents > n_extents - expert->first_extent)
            return bad(check, "expert %" PRIu64 " has %" PRIu32 " extents from %" PRIu64 ", of %" PRIu64, i, expert->n_extents,
                       expert->first_extent, n_extents);
        uint64_t bytes = 0;
        for (uint32_t e = 0; e < expert->n_extents && bytes <= MOST_BYTES; e++)
            bytes += plan->extents[expert->first_extent + e].length;
        if (bytes > MOST_BYTES)
            return bad(check, "expert %" PRIu64 " has more than %" PRIu64 " bytes", i, MOST_BYTES);
        if (bytes != expert->bytes)
            return bad(check, "expert %" PRIu64 " has %" PRIu64 " bytes, its extents %" PRIu64, i, expert->bytes, bytes);
    }
    return true;
}

static bool check_iterations(const struct check *check, const struct plan *plan)
{
    uint64_t n = plan->header.n_iterations;
    if (plan->iterations[0] != 0 || plan->iterations[n] != plan->header.n_accesses)
        return bad(check, "iterations run from access %" PRIu64 " to %" PRIu64 ", expected 0 to %" PRIu64, plan->iterations[0],
                   plan->iterations[n], plan->header.n_accesses);
    for (uint64_t i = 0; i < n; i++)
        if (plan->iterations[i] > plan->iterations[i + 1])
            return bad(check, "iteration %" PRIu64 " ends before it starts", i);
    return true;
}

static bool check_sequence(const struct check *check, const struct plan *plan)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < plan->header.n_accesses; i++) {
        uint32_t expert = plan->sequence[i];
        if (expert >= plan->header.n_experts)
            return bad(check, "access %" PRIu64 " is of expert %" PRIu32 ", of %" PRIu64, i, expert, plan->header.n_experts);
        if (__builtin_add_overflow(total, plan->experts[expert].bytes, &total))
            return bad(check, "the accesses have more than 2^64 bytes");
    }
    if (total != plan->header.total_bytes)
        return bad(check, "total of %" PRIu64 " bytes, its accesses have %" PRIu64, plan->header.total_bytes, total);
    return true;
}

bool plan_check_body(const struct plan *plan, const char *path, struct failure *failure)
{
    const struct check check = {path, failure};
    uint32_t crc = crc32_of(plan->memory + sizeof plan->header, plan->header.file_bytes - sizeof plan->header);
    if (crc != plan->header.crc_body)
        return bad(&check, "the body's CRC is %08" PRIx32 ", the header says %08" PRIx32 ": damaged", crc, plan->header.crc_body);
    return check_files(&check, plan) && check_extents(&check, plan) && check_experts(&check, plan) &&
           check_iterations(&check, plan) && check_sequence(&check, plan);
}
