/* JSON lines of a router trace into columns.

   A line is taken here only if it is simple: one flat JSON object whose wanted members are each there once and of the
   wanted type. The scan stops at the first line that is not, and Python decides about it with a full parser and a
   precise message. So this file may refuse anything, but must never take what a JSON parser would refuse, and never
   give another value than it would.

   Parsing functions get a place in the text and its end, and return the place after what they took, or NULL where the
   line is not simple. They never look at or behind the end. */
#include "trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buffer.h"

enum { MAX_ID = 65535, MAX_LAYER = 65535, MAX_WORDS = 255, MAX_DEPTH = 8, NO_CODE = 255 };

enum { ALL_EQUAL = 1, NEVER_RISING = 2, WEIGHED = 4 };

enum role { ITERATION, LAYER, IDS, PHASE, KIND, WEIGHTS, N_ROLES, OTHER = N_ROLES };

enum column { LINE_OF, KEY_OF, LAYER_OF, PHASE_OF, KIND_OF, FLAGS_OF, WIDTH_OF, N_COLUMNS };

static const size_t item_bytes[N_COLUMNS] = {8, 8, 4, 1, 1, 1, 4};

struct text {
    const char *bytes; // NULL: the format has none
    size_t length;
};

struct words {
    struct text word[MAX_WORDS];
    uint8_t code[MAX_WORDS];
    size_t n;
};

struct format {
    struct text key[N_ROLES];
    unsigned required; // a bit per role that every line must have
    struct words phases, kinds;
};

struct row {
    uint64_t iteration, layer;
    uint8_t phase, kind, flags;
    unsigned seen; // a bit per role
};

struct table {
    void *column[N_COLUMNS];
    uint16_t *ids;
    size_t n_rows, row_capacity, n_ids, id_capacity;
    bool no_memory;
};

/* 10^0 to 10^22: all of them exact in a double. */
static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

enum { MOST_TENS = 22, MAX_EXPONENT = 3 * MOST_TENS };

static inline bool is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

static inline const uint8_t *past_blanks(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r'))
        at++;
    return at;
}

/* Blanks, then this byte. */
static inline const uint8_t *past(const uint8_t *at, const uint8_t *end, uint8_t byte)
{
    at = past_blanks(at, end);
    return at < end && *at == byte ? at + 1 : NULL;
}

static const uint8_t *past_literal(const uint8_t *at, const uint8_t *end, const char *literal)
{
    size_t length = strlen(literal);
    return (size_t)(end - at) >= length && memcmp(at, literal, length) == 0 ? at + length : NULL;
}

/* The rest of a string whose opening quote was passed. Escapes that need no thought are fine in what is skipped; \u is
   not (surrogates come in pairs), nor are bytes above ASCII (which may be no UTF-8). */
static const uint8_t *skip_string(const uint8_t *at, const uint8_t *end, bool escapes)
{
    while (at < end) {
        uint8_t byte = *at++;
        if (byte == '"')
            return at;
        if (byte < 0x20 || byte >= 0x80)
            return NULL;
        if (byte != '\\')
            continue;
        if (!escapes || at == end || *at == '\0' || !strchr("\"\\/bfnrt", *at))
            return NULL;
        at++;
    }
    return NULL;
}

static const uint8_t *past_digits(const uint8_t *at, const uint8_t *end, ptrdiff_t most)
{
    const uint8_t *from = at;
    while (at < end && is_digit(*at))
        at++;
    return at > from && at - from <= most ? at : NULL;
}

/* A number within the range of a double whatever its digits are: beyond it parsers differ. */
static const uint8_t *skip_number(const uint8_t *at, const uint8_t *end)
{
    if (at < end && *at == '-')
        at++;
    if (at < end && *at == '0')
        at++;
    else
        at = past_digits(at, end, 100);
    if (at && at < end && *at == '.')
        at = past_digits(at + 1, end, 100);
    if (!at || at == end || (*at != 'e' && *at != 'E'))
        return at;
    at++;
    bool tiny = at < end && *at == '-';
    if (tiny || (at < end && *at == '+'))
        at++;
    return past_digits(at, end, tiny ? 3 : 2);
}

static const uint8_t *skip_value(const uint8_t *at, const uint8_t *end, int depth);

/* The rest of an array or object whose opening bracket was passed. */
static const uint8_t *skip_items(const uint8_t *at, const uint8_t *end, int depth, bool object)
{
    uint8_t close = object ? '}' : ']';
    const uint8_t *empty = past(at, end, close);
    if (empty)
        return empty;
    for (;;) {
        if (object) {
            at = past(at, end, '"');
            if (at)
                at = skip_string(at, end, true);
            if (at)
                at = past(at, end, ':');
            if (!at)
                return NULL;
        }
        at = skip_value(at, end, depth);
        if (!at)
            return NULL;
        at = past_blanks(at, end);
        if (at == end)
            return NULL;
        if (*at == close)
            return at + 1;
        if (*at++ != ',')
            return NULL;
    }
}

static const uint8_t *skip_value(const uint8_t *at, const uint8_t *end, int depth)
{
    at = past_blanks(at, end);
    if (at == end)
        return NULL;
    switch (*at) {
    case '"':
        return skip_string(at + 1, end, true);
    case '{':
    case '[':
        return depth > 0 ? skip_items(at + 1, end, depth - 1, *at == '{') : NULL;
    case 't':
        return past_literal(at, end, "true");
    case 'f':
        return past_literal(at, end, "false");
    case 'n':
        return past_literal(at, end, "null");
    default:
        return skip_number(at, end);
    }
}

/* An integer from 0 to top < 10^19. What follows it is the caller's to check: digits after a zero, a fraction or an
   exponent are none of the bytes that may follow. */
static inline const uint8_t *take_integer(const uint8_t *at, const uint8_t *end, uint64_t top, uint64_t *value)
{
    if (at == end || !is_digit(*at))
        return NULL;
    const uint8_t *last = end - at > 19 ? at + 19 : end;
    uint64_t sum = (uint64_t)(*at++ - '0');
    if (sum)
        while (at < last && is_digit(*at))
            sum = sum * 10 + (uint64_t)(*at++ - '0');
    *value = sum;
    return sum <= top ? at : NULL;
}

static bool more_rows(struct table *table)
{
    size_t capacity = table->row_capacity ? table->row_capacity * 2 : 64;
    for (int i = 0; i < N_COLUMNS; i++) {
        void *column = realloc(table->column[i], capacity * item_bytes[i]);
        if (!column) {
            table->no_memory = true;
            return false;
        }
        table->column[i] = column;
    }
    table->row_capacity = capacity;
    return true;
}

static bool more_ids(struct table *table)
{
    size_t capacity = table->id_capacity ? table->id_capacity * 2 : 1024;
    uint16_t *ids = realloc(table->ids, capacity * sizeof *ids);
    if (!ids) {
        table->no_memory = true;
        return false;
    }
    table->ids = ids;
    table->id_capacity = capacity;
    return true;
}

static void free_table(struct table *table)
{
    for (int i = 0; i < N_COLUMNS; i++)
        free(table->column[i]);
    free(table->ids);
}

static const uint8_t *take_ids(const uint8_t *at, const uint8_t *end, struct table *table)
{
    at = past(at, end, '[');
    while (at) {
        uint64_t id;
        at = take_integer(past_blanks(at, end), end, MAX_ID, &id);
        if (!at || (table->n_ids == table->id_capacity && !more_ids(table)))
            return NULL;
        table->ids[table->n_ids++] = (uint16_t)id;
        at = past_blanks(at, end);
        if (at == end)
            return NULL;
        if (*at == ']')
            return at + 1;
        if (*at++ != ',')
            return NULL;
    }
    return NULL;
}

static const uint8_t *take_word(const uint8_t *at, const uint8_t *end, const struct words *words, uint8_t *code)
{
    if (at == end || *at++ != '"')
        return NULL;
    for (size_t i = 0; i < words->n; i++) {
        size_t length = words->word[i].length;
        if ((size_t)(end - at) > length && at[length] == '"' && memcmp(at, words->word[i].bytes, length) == 0) {
            *code = words->code[i];
            return at + length + 1;
        }
    }
    return NULL;
}

/* A number as mantissa x 10^exponent, exactly, and as a double that is off by less than 2^-50 of itself. */
struct decimal {
    uint64_t mantissa;
    int exponent;
    bool negative;
    double about;
};

static inline bool put_digit(struct decimal *number, uint8_t byte)
{
    if (number->mantissa > (UINT64_MAX - 9) / 10)
        return false;
    number->mantissa = number->mantissa * 10 + (uint64_t)(byte - '0');
    return true;
}

static void approximate(struct decimal *number)
{
    double value = (double)number->mantissa;
    int left = number->exponent;
    for (; left > MOST_TENS; left -= MOST_TENS)
        value *= tens[MOST_TENS];
    for (; left < -MOST_TENS; left += MOST_TENS)
        value /= tens[MOST_TENS];
    value = left < 0 ? value / tens[-left] : value * tens[left];
    number->about = number->negative ? -value : value;
}

static const uint8_t *take_decimal(const uint8_t *at, const uint8_t *end, struct decimal *number)
{
    const uint8_t *after = skip_number(at, end);
    if (!after)
        return NULL;
    *number = (struct decimal){.negative = *at == '-'};
    if (number->negative)
        at++;
    for (; at < after && is_digit(*at); at++)
        if (!put_digit(number, *at))
            return NULL;
    if (at < after && *at == '.')
        for (at++; at < after && is_digit(*at); at++, number->exponent--)
            if (!put_digit(number, *at))
                return NULL;
    if (after - at >= 2) { // the e of an exponent of one to three digits
        bool minus = *++at == '-';
        int exponent = 0;
        for (at += *at == '-' || *at == '+'; at < after; at++)
            exponent = exponent * 10 + (*at - '0');
        number->exponent += minus ? -exponent : exponent;
    }
    if (number->mantissa == 0)
        number->exponent = 0;
    if (number->exponent < -MAX_EXPONENT || number->exponent > MAX_EXPONENT)
        return NULL;
    approximate(number);
    return after;
}

static bool same_decimal(struct decimal a, struct decimal b)
{
    if (a.mantissa == 0 || b.mantissa == 0)
        return a.mantissa == b.mantissa;
    for (; a.mantissa % 10 == 0; a.exponent++)
        a.mantissa /= 10;
    for (; b.mantissa % 10 == 0; b.exponent++)
        b.mantissa /= 10;
    return a.mantissa == b.mantissa && a.exponent == b.exponent && a.negative == b.negative;
}

/* What the step from one weight to the next leaves of the flags. Two numbers so close that they might be one and the
   same double are left to Python: -1. */
static int flags_after(int flags, const struct decimal *from, const struct decimal *to)
{
    double a = from->about, b = to->about;
    double margin = 0x1p-48 * ((a < 0 ? -a : a) + (b < 0 ? -b : b));
    if (b - a > margin)
        return flags & ~(ALL_EQUAL | NEVER_RISING);
    if (a - b > margin)
        return flags & ~ALL_EQUAL;
    return same_decimal(*from, *to) ? flags : -1;
}

static const uint8_t *take_weights(const uint8_t *at, const uint8_t *end, uint8_t *out)
{
    struct decimal number[2];
    int flags = ALL_EQUAL | NEVER_RISING | WEIGHED;
    at = past(at, end, '[');
    for (unsigned i = 0; at; i++) {
        at = take_decimal(past_blanks(at, end), end, &number[i % 2]);
        if (!at || (i && (flags = flags_after(flags, &number[(i - 1) % 2], &number[i % 2])) < 0))
            return NULL;
        at = past_blanks(at, end);
        if (at == end)
            return NULL;
        *out = (uint8_t)flags;
        if (*at == ']')
            return at + 1;
        if (*at++ != ',')
            return NULL;
    }
    return NULL;
}

/* Which of the format's keys this is, and the place after its closing quote. Another key must be free of escapes, which
   could hide one of the format's. */
static enum role take_key(const uint8_t **at, const uint8_t *end, const struct format *format)
{
    for (int role = 0; role < N_ROLES; role++) {
        size_t length = format->key[role].length;
        if (length && (size_t)(end - *at) > length && (*at)[length] == '"' &&
            memcmp(*at, format->key[role].bytes, length) == 0) {
            *at += length + 1;
            return (enum role)role;
        }
    }
    *at = skip_string(*at, end, false);
    return OTHER;
}

static const uint8_t *take_member(const uint8_t *at, const uint8_t *end, const struct format *format,
                                  struct table *table, struct row *row)
{
    at = past(at, end, '"');
    if (!at)
        return NULL;
    enum role role = take_key(&at, end, format);
    if (!at || !(at = past(at, end, ':')))
        return NULL;
    if (role == OTHER)
        return skip_value(at, end, MAX_DEPTH);
    if (row->seen & 1u << role)
        return NULL;
    row->seen |= 1u << role;
    at = past_blanks(at, end);
    switch (role) {
    case ITERATION:
        return take_integer(at, end, INT64_MAX, &row->iteration);
    case LAYER:
        return take_integer(at, end, MAX_LAYER, &row->layer);
    case IDS:
        return take_ids(at, end, table);
    case PHASE:
        return take_word(at, end, &format->phases, &row->phase);
    case KIND:
        return take_word(at, end, &format->kinds, &row->kind);
    default:
        return take_weights(at, end, &row->flags);
    }
}

/* A line with its end, or what is left of a last one. */
static const uint8_t *take_line(const uint8_t *at, const uint8_t *end, const struct format *format,
                                struct table *table, struct row *row)
{
    at = past(at, end, '{');
    if (!at)
        return NULL;
    for (;;) {
        at = take_member(at, end, format, table, row);
        if (!at)
            return NULL;
        at = past_blanks(at, end);
        if (at == end)
            return NULL;
        if (*at == '}')
            break;
        if (*at++ != ',')
            return NULL;
    }
    if (format->required & ~row->seen)
        return NULL;
    at = past_blanks(at + 1, end);
    if (at == end)
        return at;
    return *at == '\n' ? at + 1 : NULL;
}

static bool put_row(struct table *table, const struct row *row, uint64_t line, size_t width)
{
    if (width > UINT32_MAX || (table->n_rows == table->row_capacity && !more_rows(table)))
        return false;
    size_t n = table->n_rows++;
    ((uint64_t *)table->column[LINE_OF])[n] = line;
    ((int64_t *)table->column[KEY_OF])[n] = row->seen & 1u << ITERATION ? (int64_t)row->iteration : -1;
    ((int32_t *)table->column[LAYER_OF])[n] = (int32_t)row->layer;
    ((uint8_t *)table->column[PHASE_OF])[n] = row->phase;
    ((uint8_t *)table->column[KIND_OF])[n] = row->kind;
    ((uint8_t *)table->column[FLAGS_OF])[n] = row->flags;
    ((uint32_t *)table->column[WIDTH_OF])[n] = (uint32_t)width;
    return true;
}

/* Take lines up to the end or to the first that is not simple: returns that place, and its line number. */
static const uint8_t *take_lines(const uint8_t *at, const uint8_t *end, const struct format *format,
                                 struct table *table, uint64_t *line)
{
    while (at < end) {
        const uint8_t *first = past_blanks(at, end);
        if (first == end || *first == '\n') {
            at = first == end ? end : first + 1;
            ++*line;
            continue;
        }
        struct row row = {.phase = NO_CODE, .kind = NO_CODE};
        size_t before = table->n_ids;
        const uint8_t *next = take_line(first, end, format, table, &row);
        if (!next || !put_row(table, &row, *line, table->n_ids - before)) {
            table->n_ids = before;
            return at;
        }
        at = next;
        ++*line;
    }
    return at;
}

/* A key or word as it stands in the text, without escapes. The bytes live as long as the object. */
static int take_text(PyObject *object, const char *name, struct text *text)
{
    Py_ssize_t length;
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s holds %R; expected strings", name, object);
        return -1;
    }
    text->bytes = PyUnicode_AsUTF8AndSize(object, &length);
    if (!text->bytes)
        return -1;
    text->length = (size_t)length;
    bool plain = length > 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text->bytes[i];
        plain = plain && byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\';
    }
    if (plain)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s holds %R; expected one or more printable ASCII characters but \" and \\", name,
                 object);
    return -1;
}

static bool same_text(const struct text *a, const struct text *b)
{
    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

static int check_keys(const struct format *format)
{
    for (int a = 0; a < N_ROLES; a++)
        for (int b = 0; b < a; b++)
            if (format->key[a].bytes && format->key[b].bytes && same_text(&format->key[a], &format->key[b])) {
                PyErr_Format(PyExc_ValueError, "keys names '%s' twice; expected distinct keys", format->key[a].bytes);
                return -1;
            }
    if (!format->key[LAYER].bytes || !format->key[IDS].bytes) {
        PyErr_SetString(PyExc_ValueError, "keys has None for the layer or the ids; expected strings");
        return -1;
    }
    return 0;
}

static int read_keys(PyObject *keys, struct format *format)
{
    if (PyTuple_Size(keys) != N_ROLES) {
        PyErr_Format(PyExc_ValueError, "keys has %zd items; expected %d: iteration, layer, ids, phase, kind, weights",
                     PyTuple_Size(keys), (int)N_ROLES);
        return -1;
    }
    for (int role = 0; role < N_ROLES; role++) {
        PyObject *key = PyTuple_GetItem(keys, role);
        if (key == Py_None)
            continue;
        if (take_text(key, "keys", &format->key[role]) < 0)
            return -1;
        if (role != WEIGHTS)
            format->required |= 1u << role;
    }
    return check_keys(format);
}

static int read_word(PyObject *pair, const char *name, struct words *words)
{
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "%s holds %R; expected pairs of a word and its code", name, pair);
        return -1;
    }
    struct text *word = &words->word[words->n];
    if (take_text(PyTuple_GetItem(pair, 0), name, word) < 0)
        return -1;
    long code = PyLong_AsLong(PyTuple_GetItem(pair, 1));
    if (code == -1 && PyErr_Occurred())
        return -1;
    if (code < 0 || code >= NO_CODE) {
        PyErr_Format(PyExc_ValueError, "%s gives '%s' the code %ld; expected 0 to %d", name, word->bytes, code,
                     NO_CODE - 1);
        return -1;
    }
    for (size_t i = 0; i < words->n; i++)
        if (same_text(word, &words->word[i])) {
            PyErr_Format(PyExc_ValueError, "%s names '%s' twice; expected distinct words", name, word->bytes);
            return -1;
        }
    words->code[words->n++] = (uint8_t)code;
    return 0;
}

static int read_words(PyObject *pairs, const char *name, bool wanted, struct words *words)
{
    Py_ssize_t n = PyTuple_Size(pairs);
    if (n > MAX_WORDS || (n > 0) != wanted) {
        PyErr_Format(PyExc_ValueError, "%s has %zd words; expected %s", name, n,
                     wanted ? "1 to 255, as keys names their key" : "none, as keys has None for their key");
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_word(PyTuple_GetItem(pairs, i), name, words) < 0)
            return -1;
    return 0;
}

/* Each column is freed once it is copied, so that a block's results are held twice for one column at a time. */
static PyObject *results_of(struct table *table, Py_ssize_t stop, uint64_t line)
{
    PyObject *results = PyTuple_New(2 + N_COLUMNS + 1);
    if (!results)
        return NULL;
    PyObject *item = PyLong_FromSsize_t(stop);
    if (!item || PyTuple_SetItem(results, 0, item) < 0)
        goto failed;
    item = PyLong_FromUnsignedLongLong(line);
    if (!item || PyTuple_SetItem(results, 1, item) < 0)
        goto failed;
    for (int i = 0; i < N_COLUMNS; i++) {
        item = PyBytes_FromStringAndSize(table->column[i], (Py_ssize_t)(table->n_rows * item_bytes[i]));
        if (!item || PyTuple_SetItem(results, 2 + i, item) < 0)
            goto failed;
        free(table->column[i]);
        table->column[i] = NULL;
    }
    item = PyBytes_FromStringAndSize((const char *)table->ids, (Py_ssize_t)(table->n_ids * sizeof *table->ids));
    if (!item || PyTuple_SetItem(results, 2 + N_COLUMNS, item) < 0)
        goto failed;
    return results;
failed:
    Py_DECREF(results);
    return NULL;
}

static PyObject *scan(const Py_buffer *data, Py_ssize_t start, Py_ssize_t first_line, const struct format *format)
{
    if (start < 0 || start > data->len)
        return PyErr_Format(PyExc_ValueError, "start is %zd; expected 0 to %zd, the bytes of data", start, data->len);
    if (first_line < 0)
        return PyErr_Format(PyExc_ValueError, "first_line is %zd; expected 0 or more", first_line);
    const uint8_t *text = data->len ? data->buf : (const void *)"";
    const uint8_t *stop;
    uint64_t line = (uint64_t)first_line;
    struct table table = {.n_rows = 0};
    Py_BEGIN_ALLOW_THREADS
    stop = take_lines(text + start, text + data->len, format, &table, &line);
    Py_END_ALLOW_THREADS
    PyObject *results = table.no_memory ? PyErr_NoMemory() : results_of(&table, stop - text, line);
    free_table(&table);
    return results;
}

const char scan_jsonl_doc[] =
    "scan_jsonl(data, start, first_line, keys, phases, kinds)\n--\n\n"
    "Scan the JSON lines in data from byte start on, up to the end or to the first line that is not simple.\n\n"
    "A simple line is a flat JSON object that has the keys (iteration, layer, ids, phase, kind, weights; None where\n"
    "the format has none) once each and of the expected type; weights may be missing. phases and kinds are pairs of a\n"
    "word and its code. Returns (stop, line, lines, iterations, layers, phases, kinds, flags, widths, ids): the first\n"
    "byte not scanned and its line number, counted from first_line, and columns as bytes of uint64, int64, int32,\n"
    "three times uint8, uint32, uint16. Flags: 1 all weights equal, 2 weights never rise, 4 the line has weights.";

PyObject *py_scan_jsonl(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", "start", "first_line", "keys", "phases", "kinds", NULL};
    PyObject *object, *keys, *phases, *kinds;
    Py_ssize_t start, first_line;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnnO!O!O!:scan_jsonl", names, &object, &start, &first_line,
                                     &PyTuple_Type, &keys, &PyTuple_Type, &phases, &PyTuple_Type, &kinds))
        return NULL;
    struct format format = {.required = 0};
    if (read_keys(keys, &format) < 0 ||
        read_words(phases, "phases", format.key[PHASE].bytes != NULL, &format.phases) < 0 ||
        read_words(kinds, "kinds", format.key[KIND].bytes != NULL, &format.kinds) < 0)
        return NULL;
    Py_buffer data;
    if (take_unsigned(object, "data", 1, &data) < 0)
        return NULL;
    PyObject *results = scan(&data, start, first_line, &format);
    PyBuffer_Release(&data);
    return results;
}
