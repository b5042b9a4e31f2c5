#include "replay/sigbus.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>

static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t expected;

static void on_sigbus(int signal)
{
    if (expected)
        siglongjmp(back, 1);
    struct sigaction standard;
    memset(&standard, 0, sizeof standard);
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, NULL);
    raise(signal);
}

void sigbus_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_sigbus;
    action.sa_flags = SA_NODEFER; // the jump leaves the handler without unblocking
    sigaction(SIGBUS, &action, NULL);
}

bool sigbus_guard(void (*call)(void *argument), void *argument)
{
    if (sigsetjmp(back, 0) != 0) {
        expected = 0;
        return false;
    }
    expected = 1;
    call(argument);
    expected = 0;
    return true;
}

struct copy {
    char *to;
    const char *from;
    uint64_t length;
};

static void run_copy(void *argument)
{
    const struct copy *copy = argument;
    memcpy(copy->to, copy->from, copy->length);
}

bool sigbus_copy(char *to, const char *from, uint64_t length)
{
    struct copy copy = {to, from, length};
    return sigbus_guard(run_copy, &copy);
}
