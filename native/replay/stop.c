#include "replay/stop.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

atomic_bool stop_requested;
static volatile sig_atomic_t received;

static void on_signal(int signal)
{
    if (received)
        _exit(128 + signal);
    received = signal;
    atomic_store(&stop_requested, true);
}

void stop_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal; // without SA_RESTART: waiting for the start line must end
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

int stop_signal(void)
{
    return received;
}
