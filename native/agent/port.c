#include "agent/port.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "common/number.h"

enum { LONGEST_HEADER = 2 * LONGEST_WORD + 24, LONGEST_FLUSH_MS = 2000 };

// Bytes as they are: no echo, no line editing, no signals from them. The speed means nothing to a virtual port but how long it
// waits for more bytes before it hands over a few.
static bool make_raw(int fd)
{
    struct termios terminal;
    if (tcgetattr(fd, &terminal) != 0)
        return false;
    cfmakeraw(&terminal);
    cfsetspeed(&terminal, B115200);
    terminal.c_cflag |= CLOCAL | CREAD;
    return tcsetattr(fd, TCSANOW, &terminal) == 0;
}

static bool set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

bool port_open(struct port *port, const char *path, struct failure *failure)
{
    bool standard = strcmp(path, "-") == 0;
    *port = (struct port){.in = STDIN_FILENO, .out = STDOUT_FILENO};
    if (!standard)
        port->in = port->out = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (port->in < 0 || !set_nonblocking(port->in) || !set_nonblocking(port->out))
        return failure_set(failure, EXIT_FAILED, "open", "the port %.800s cannot be opened: %s", path, strerror(errno));
    if (isatty(port->in))
        return make_raw(port->in) ||
               failure_set(failure, EXIT_FAILED, "open", "the terminal %.800s cannot be made raw: %s", path, strerror(errno));
    // A port of virtio-serial is no terminal: it has no ways of its own with the bytes.
    struct stat status;
    if (!standard && (fstat(port->in, &status) != 0 || !S_ISCHR(status.st_mode)))
        return failure_set(failure, EXIT_FAILED, "open", "the port %.800s is no character device: expected /dev/ttyS1, "
                           "/dev/vport0p1 or the like", path);
    return true;
}

void port_receive(struct port *port)
{
    enum { MOST = 1 << 16 };
    ssize_t got = queue_fill(&port->received, port->in, MOST);
    if (got == 0 || (got < 0 && errno != EAGAIN))
        port->ended = true;
}

// Copies the word at `text`, which a space or the end of the header follows. Returns what follows it, or NULL.
static const char *take_word(const char *text, char word[LONGEST_WORD + 1])
{
    size_t length = strcspn(text, " ");
    if (length == 0 || length > LONGEST_WORD)
        return NULL;
    memcpy(word, text, length);
    word[length] = '\0';
    return text[length] ? text + length + 1 : NULL;
}

static bool malformed(const char *header, struct failure *failure)
{
    char shown[LONGEST_HEADER + 1] = {0};
    for (size_t i = 0; header[i]; i++)
        shown[i] = header[i] >= ' ' && header[i] <= '~' ? header[i] : '?';
    return failure_set(failure, EXIT_USAGE, "frame", "malformed header \"%s\": expected TAG VERB N, N at most %d", shown,
                       LARGEST_PAYLOAD);
}

// Whether a whole header has come, and what it says. Its length is that of the line.
static bool parse_header(const struct queue *received, struct request *request, size_t *header_bytes, struct failure *failure)
{
    char header[LONGEST_HEADER + 1];
    size_t seen = received->length < LONGEST_HEADER ? received->length : LONGEST_HEADER;
    const char *end = seen ? memchr(queue_front(received), '\n', seen) : NULL;
    if (!end && seen < LONGEST_HEADER)
        return false;
    size_t length = end ? (size_t)(end - queue_front(received)) : seen;
    memcpy(header, queue_front(received), length);
    header[length] = '\0';
    uint64_t bytes = 0;
    const char *verb = end && strlen(header) == length ? take_word(header, request->tag) : NULL;
    const char *number = verb ? take_word(verb, request->verb) : NULL;
    if (!number || !parse_u64(number, &bytes) || bytes > LARGEST_PAYLOAD)
        return malformed(header, failure);
    request->length = bytes;
    *header_bytes = length + 1;
    return true;
}

enum arrival port_next(struct port *port, struct request *request, struct failure *failure)
{
    size_t header_bytes = 0;
    if (!parse_header(&port->received, request, &header_bytes, failure))
        return failure->code ? ARRIVED_MALFORMED : ARRIVED_NOTHING;
    if (port->received.length < header_bytes + request->length)
        return ARRIVED_NOTHING;
    request->payload = malloc(request->length + 1);
    if (!request->payload) {
        fprintf(stderr, "moetier-agent: no memory for a request of %zu bytes\n", request->length);
        _exit(1);
    }
    memcpy(request->payload, queue_front(&port->received) + header_bytes, request->length);
    request->payload[request->length] = '\0';
    queue_drop(&port->received, header_bytes + request->length);
    return ARRIVED_REQUEST;
}

void port_send(struct port *port, const char *tag, const char *verb, const void *payload, size_t length)
{
    char header[LONGEST_HEADER + 1];
    int written = snprintf(header, sizeof header, "%s %s %zu\n", tag, verb, length);
    queue_put(&port->sending, header, (size_t)written);
    queue_put(&port->sending, payload, length);
}

void port_transmit(struct port *port)
{
    if (!queue_empty_into(&port->sending, port->out))
        port->ended = true;
}

void port_flush(struct port *port)
{
    struct pollfd out = {.fd = port->out, .events = POLLOUT};
    while (port->sending.length && poll(&out, 1, LONGEST_FLUSH_MS) > 0 && queue_empty_into(&port->sending, port->out))
        ;
}
