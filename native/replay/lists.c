#include "replay/lists.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/procfile.h"
#include "replay/crc32.h"

struct check {
    const char *path;
    enum list_kind kind;
    const struct plan *plan;
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
    return failure_set(check->failure, EXIT_USAGE, "list", "list %.800s: %s", check->path, reason);
}

static const char *kind_name(uint32_t kind)
{
    return kind == LIST_TABLE ? "a table" : kind == LIST_ADVICE ? "advice" : "of an unknown kind";
}

// Lists of one plan or pool would be nonsense, not an error, in another.
static bool check_owner(const struct check *check, const struct list_header *header)
{
    const struct plan_header *plan = &check->plan->header;
    if (header->pool_id != plan->pool_id)
        return bad(check, "made for pool %016" PRIx64 ", the plan reads pool %016" PRIx64, header->pool_id, plan->pool_id);
    if (header->n_experts != plan->n_experts)
        return bad(check, "made for %" PRIu64 " experts, the plan has %" PRIu64, header->n_experts, plan->n_experts);
    bool table = check->kind == LIST_TABLE;
    uint64_t accesses = table ? 0 : plan->n_accesses;
    if (header->n_accesses != accesses)
        return bad(check, "made for a plan of %" PRIu64 " accesses, expected %" PRIu64 "%s", header->n_accesses, accesses,
                   table ? " (a table belongs to no plan)" : "");
    uint32_t crc = table ? 0 : crc32_of(check->plan->sequence, plan->n_accesses * sizeof *check->plan->sequence);
    if (header->sequence_crc != crc)
        return bad(check, "made for the accesses with CRC %08" PRIx32 ", expected %08" PRIx32 "%s", header->sequence_crc, crc,
                   table ? " (a table belongs to no plan)" : ": made for another plan");
    return true;
}

// The body is its three sections and nothing else; the numbers are held small first, so that no sum overflows.
static bool check_size(const struct check *check, const struct list_header *header)
{
    uint64_t body = header->file_bytes - sizeof *header;
    if (header->n_lists > INT32_MAX || header->n_lists > body / 16 || header->n_ids > body / 4)
        return bad(check, "%" PRIu64 " lists of %" PRIu64 " experts do not fit into its %" PRIu64 " bytes", header->n_lists,
                   header->n_ids, header->file_bytes);
    uint64_t expected = (2 * header->n_lists + 1) * 8 + (header->n_ids * 4 + 7) / 8 * 8;
    if (body != expected)
        return bad(check, "%" PRIu64 " lists of %" PRIu64 " experts take %" PRIu64 " bytes, the file has %" PRIu64,
                   header->n_lists, header->n_ids, expected + sizeof *header, header->file_bytes);
    if (check->kind == LIST_TABLE && header->n_lists != 1)
        return bad(check, "a table of %" PRIu64 " lists, expected one", header->n_lists);
    return true;
}

static bool check_header(const struct check *check, const struct list_header *header, uint64_t file_bytes)
{
    if (memcmp(header->magic, "MOELIST", 8) != 0)
        return bad(check, "not a list of experts (it does not start with MOELIST)");
    if (header->version != 1)
        return bad(check, "version %" PRIu32 ", this program reads version 1", header->version);
    if (header->header_bytes != sizeof *header)
        return bad(check, "header of %" PRIu32 " bytes, expected %zu", header->header_bytes, sizeof *header);
    if (header->file_bytes != file_bytes)
        return bad(check, "the file has %" PRIu64 " bytes, its header says %" PRIu64 ": truncated, or still being written",
                   file_bytes, header->file_bytes);
    uint32_t crc = crc32_of(header, offsetof(struct list_header, crc_header));
    if (crc != header->crc_header)
        return bad(check, "the header's CRC is %08" PRIx32 ", it says %08" PRIx32 ": damaged", crc, header->crc_header);
    if (header->kind != (uint32_t)check->kind)
        return bad(check, "it is %s (kind %" PRIu32 "), expected %s", kind_name(header->kind), header->kind,
                   kind_name(check->kind));
    if (header->flags & ~(uint32_t)LIST_KNOWN_FLAGS)
        return bad(check, "unknown flags %#" PRIx32, header->flags & ~(uint32_t)LIST_KNOWN_FLAGS);
    if (header->reserved_1 || header->reserved_2 || header->reserved_3)
        return bad(check, "reserved fields are not zero");
    return check_owner(check, header) && check_size(check, header);
}

static bool check_offsets(const struct check *check, const struct lists *lists)
{
    uint64_t n = lists->header.n_lists;
    if (lists->offsets[0] != 0 || lists->offsets[n] != lists->header.n_ids)
        return bad(check, "lists run from %" PRIu64 " to %" PRIu64 ", expected 0 to %" PRIu64, lists->offsets[0],
                   lists->offsets[n], lists->header.n_ids);
    for (uint64_t i = 0; i < n; i++)
        if (lists->offsets[i] > lists->offsets[i + 1])
            return bad(check, "list %" PRIu64 " ends before it starts", i);
    return true;
}

static bool check_triggers(const struct check *check, const struct lists *lists)
{
    if (check->kind == LIST_TABLE)
        return lists->triggers[0] == 0 || bad(check, "a table with trigger %" PRIu64 ", expected 0", lists->triggers[0]);
    for (uint64_t i = 0; i < lists->header.n_lists; i++) {
        uint64_t trigger = lists->triggers[i];
        if (trigger >= lists->header.n_accesses)
            return bad(check, "list %" PRIu64 " is for access %" PRIu64 " of %" PRIu64, i, trigger, lists->header.n_accesses);
        if (i > 0 && trigger <= lists->triggers[i - 1])
            return bad(check, "list %" PRIu64 " is for access %" PRIu64 ", not after that of the list before it", i, trigger);
    }
    return true;
}

static bool check_ids(const struct check *check, const struct lists *lists)
{
    for (uint64_t i = 0; i < lists->header.n_ids; i++)
        if (lists->ids[i] >= lists->header.n_experts)
            return bad(check, "entry %" PRIu64 " is expert %" PRIu32 ", of %" PRIu64, i, lists->ids[i],
                       lists->header.n_experts);
    if (check->kind != LIST_TABLE)
        return true;
    bool *seen = calloc(lists->header.n_experts + 1, sizeof *seen); // + 1: a plan without experts is no lack of memory
    if (!seen)
        return failure_set(check->failure, EXIT_FAILED, "memory", "no memory to check a table of %" PRIu64 " experts",
                           lists->header.n_experts);
    bool good = true;
    for (uint64_t i = 0; good && i < lists->header.n_ids; i++) {
        if (seen[lists->ids[i]])
            good = bad(check, "entry %" PRIu64 " is expert %" PRIu32 ", which the table already holds", i, lists->ids[i]);
        seen[lists->ids[i]] = true;
    }
    free(seen);
    return good;
}

static bool check_body(const struct check *check, const struct lists *lists)
{
    uint32_t crc = crc32_of(lists->memory + sizeof lists->header, lists->header.file_bytes - sizeof lists->header);
    if (crc != lists->header.crc_body)
        return bad(check, "the body's CRC is %08" PRIx32 ", the header says %08" PRIx32 ": damaged", crc, lists->header.crc_body);
    return check_offsets(check, lists) && check_triggers(check, lists) && check_ids(check, lists);
}

static void place_sections(struct lists *lists)
{
    lists->offsets = (const uint64_t *)(lists->memory + sizeof lists->header);
    lists->triggers = lists->offsets + lists->header.n_lists + 1;
    lists->ids = (const uint32_t *)(lists->triggers + lists->header.n_lists);
}

static bool load(struct lists *lists, int fd, const struct check *check)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return bad(check, "cannot be read: %s", strerror(errno));
    if (!S_ISREG(status.st_mode) || status.st_size < (off_t)sizeof lists->header)
        return bad(check, "it has %jd bytes, expected a file of at least %zu", (intmax_t)status.st_size, sizeof lists->header);
    if (!read_exactly(fd, (char *)&lists->header, sizeof lists->header))
        return bad(check, "cannot be read: %s", strerror(errno));
    if (!check_header(check, &lists->header, (uint64_t)status.st_size))
        return false;
    lists->memory = malloc(lists->header.file_bytes);
    if (!lists->memory)
        return failure_set(check->failure, EXIT_FAILED, "memory", "no memory for the list: %" PRIu64 " bytes asked",
                           lists->header.file_bytes);
    if (!read_exactly(fd, lists->memory, lists->header.file_bytes))
        return bad(check, "cannot be read: %s", strerror(errno));
    place_sections(lists);
    return check_body(check, lists);
}

bool lists_load(struct lists *lists, const char *path, enum list_kind kind, const struct plan *plan, struct failure *failure)
{
    const struct check check = {path, kind, plan, failure};
    // Non-blocking: a pipe is refused, not waited for.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return bad(&check, "cannot be read: %s", strerror(errno));
    bool loaded = load(lists, fd, &check);
    fdatasync(fd); // dirty pages (the list was just written) cannot be dropped
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return loaded;
}

void lists_free(struct lists *lists)
{
    free(lists->memory);
    *lists = (struct lists){0};
}
