// moetier-agent: reads and writes the kernel's files and runs processes as a host asks over a serial port.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agent/children.h"
#include "agent/files.h"
#include "agent/port.h"
#include "agent/spawn.h"
#include "common/failure.h"
#include "common/parent.h"

// Output of processes is left in their pipes while so much waits for the port: they wait, the memory does not grow.
enum { MOST_WAITING = 1 << 20 };
enum { AT_IN, AT_OUT, AT_SIGNAL, AT_CHILDREN };

struct agent {
    struct port port;
    struct children children;
    int signals; // SIGCHLD, as a descriptor
    bool told_to_end;
    struct pollfd *polled;
};

static void help(void)
{
    puts("moetier-agent PORT: serve a host over /dev/ttyS1, /dev/vport0p1 or the like, or over stdin and stdout (PORT is -)\n"
         "\n"
         "  --help, --version\n"
         "\n"
         "Reads and writes files and runs processes as frames of the port ask. The processes die with it.\n"
         "Ends with 0 when told to or at the end of input, 1 failed, 2 usage or a malformed frame.");
}

// Descriptors 0 to 2 are taken by something, so that no pipe becomes one of them.
static void take_standard_fds(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    close(fd);
}

static int open_signals(void)
{
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &ended, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void serve(struct agent *agent, const struct request *request)
{
    if (strcmp(request->verb, "shutdown") == 0) {
        agent->told_to_end = true;
        answer(&agent->port, request, NULL, 0);
    } else if (!files_serve(&agent->port, request) && !children_serve(&agent->children, &agent->port, request)) {
        answer_refusal(&agent->port, request, ENOSYS, "unknown verb");
    }
}

// The port is read even while it does not take what is sent: a host that writes first and reads then is served too.
static bool serve_all(struct agent *agent, struct failure *failure)
{
    struct request request;
    enum arrival arrival = ARRIVED_NOTHING;
    port_receive(&agent->port);
    while (!agent->told_to_end && (arrival = port_next(&agent->port, &request, failure)) == ARRIVED_REQUEST) {
        serve(agent, &request);
        free(request.payload);
    }
    return arrival != ARRIVED_MALFORMED;
}

static bool wait_for_work(struct agent *agent, struct failure *failure)
{
    size_t count = AT_CHILDREN + agent->children.count * CHILD_PIPES;
    struct pollfd *polled = realloc(agent->polled, count * sizeof *polled);
    if (!polled)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory to wait for %zu pipes", count);
    agent->polled = polled;
    const struct port *port = &agent->port;
    polled[AT_IN] = (struct pollfd){.fd = port->in, .events = POLLIN};
    polled[AT_OUT] = (struct pollfd){.fd = port->sending.length ? port->out : -1, .events = POLLOUT};
    polled[AT_SIGNAL] = (struct pollfd){.fd = agent->signals, .events = POLLIN};
    children_poll(&agent->children, polled + AT_CHILDREN, port->sending.length > MOST_WAITING);
    while (poll(polled, count, -1) < 0)
        if (errno != EINTR)
            return failure_set(failure, EXIT_FAILED, "poll", "cannot wait for %zu pipes: %s", count, strerror(errno));
    return true;
}

// Children before requests: those that a request starts were not waited for.
static bool work(struct agent *agent, struct failure *failure)
{
    if (!wait_for_work(agent, failure))
        return false;
    children_move(&agent->children, &agent->port, agent->polled + AT_CHILDREN);
    if (agent->polled[AT_SIGNAL].revents) {
        struct signalfd_siginfo news;
        while (read(agent->signals, &news, sizeof news) == sizeof news)
            ;
        children_reap(&agent->children);
    }
    if (agent->polled[AT_IN].revents && !serve_all(agent, failure))
        return false;
    children_report(&agent->children, &agent->port);
    port_transmit(&agent->port);
    return true;
}

static bool run(struct agent *agent, const char *path, struct failure *failure)
{
    take_standard_fds();
    agent->signals = open_signals();
    if (agent->signals < 0)
        return failure_set(failure, EXIT_FAILED, "signalfd", "signals cannot be waited for: %s", strerror(errno));
    if (!port_open(&agent->port, path, failure))
        return false;
    set_oom_score("-1000");
    port_send(&agent->port, "hello", "agent", MOETIER_VERSION, strlen(MOETIER_VERSION));
    bool good = true;
    while (good && !agent->told_to_end && !agent->port.ended)
        good = work(agent, failure);
    children_kill(&agent->children);
    port_flush(&agent->port);
    return good;
}

int main(int argc, char **argv)
{
    static struct agent agent;
    static struct failure failure;
    die_with_parent(SIGKILL);
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        help();
    } else if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("moetier-agent " MOETIER_VERSION);
    } else if (argc != 2 || (argv[1][0] == '-' && argv[1][1])) {
        failure_set(&failure, EXIT_USAGE, "usage", "expected one port; see --help");
    } else {
        run(&agent, argv[1], &failure);
    }
    if (!failure.code)
        return EXIT_DONE;
    fprintf(stderr, "moetier-agent: %s\n", failure.message);
    return (int)failure.exit;
}
