#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void set_oom_score(const char *score)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t written = write(fd, score, strlen(score));
    (void)written; // as well protected as is allowed
    close(fd);
}

static void reset_signals(void)
{
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

// In the new process: becomes the program, or writes why not.
static void become(char *const *argv, pid_t agent, const int theirs[3], int report)
{
    setsid();
    reset_signals();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_oom_score("0");
    bool ready = getppid() == agent; // or it died before the request above was in force
    for (int i = 0; i < 3; i++)
        ready = dup2(theirs[i], i) == i && ready;
    if (ready)
        execvp(argv[0], argv);
    int error = errno;
    ssize_t written = write(report, &error, sizeof error);
    (void)written;
    _exit(127);
}

// The errno value that the new process wrote, 0 when it became the program.
static int await(int report, pid_t pid)
{
    int error = 0;
    ssize_t got;
    do
        got = read(report, &error, sizeof error);
    while (got < 0 && errno == EINTR);
    if (got != sizeof error)
        return 0;
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return error;
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

// pairs: read and write end of stdin's, stdout's and stderr's pipe, and of the report's.
static int start(char *const *argv, pid_t *pid, const int pairs[8])
{
    const int theirs[3] = {pairs[0], pairs[3], pairs[5]};
    const int ours[3] = {pairs[1], pairs[2], pairs[4]};
    for (int i = 0; i < 3; i++)
        fcntl(ours[i], F_SETFL, O_NONBLOCK); // of our end alone
    pid_t agent = getpid();
    *pid = fork();
    if (*pid == 0)
        become(argv, agent, theirs, pairs[7]);
    int error = *pid < 0 ? errno : 0;
    close_all(theirs, 3);
    close(pairs[7]);
    if (!error)
        error = await(pairs[6], *pid);
    close(pairs[6]);
    if (error)
        close_all(ours, 3);
    return error;
}

int spawn(char *const *argv, pid_t *pid, int pipes[3])
{
    int pairs[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    for (int i = 0; i < 8; i += 2)
        if (pipe2(pairs + i, O_CLOEXEC) != 0) {
            int error = errno;
            close_all(pairs, 8);
            return error;
        }
    int error = start(argv, pid, pairs);
    for (int i = 0; !error && i < 3; i++)
        pipes[i] = i == 0 ? pairs[1] : pairs[2 * i];
    return error;
}
