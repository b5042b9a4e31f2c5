#include "replay/threads.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_BYTES = 1 << 20 };

struct team_member {
    struct team *team;
    void *argument;
    pthread_t thread;
};

bool thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument, struct failure *failure)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error)
        return failure_set(failure, EXIT_FAILED, "threads", "the %s thread cannot be started: %s", name, strerror(error));
    pthread_setname_np(*thread, name);
    return true;
}

static void *member_main(void *argument)
{
    const struct team_member *member = argument;
    struct team *team = member->team;
    pthread_mutex_lock(&team->gate);
    bool dismissed = team->dismissed;
    pthread_mutex_unlock(&team->gate);
    while (!dismissed) {
        pthread_barrier_wait(&team->start);
        if (!team->work)
            break;
        team->work(member->argument);
        pthread_barrier_wait(&team->finish);
    }
    return NULL;
}

static void let_go(struct team *team)
{
    for (uint32_t i = 0; i < team->n; i++)
        pthread_join(team->members[i].thread, NULL);
    pthread_barrier_destroy(&team->finish);
    pthread_barrier_destroy(&team->start);
    pthread_mutex_destroy(&team->gate);
    free(team->members);
    *team = (struct team){0};
}

bool team_start(struct team *team, uint32_t n, const char *name, void *first, size_t stride, struct failure *failure)
{
    bool good = true;
    *team = (struct team){0};
    if (n == 0)
        return true;
    team->members = calloc(n, sizeof *team->members);
    if (!team->members)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for %" PRIu32 " threads", n);
    pthread_mutex_init(&team->gate, NULL);
    pthread_barrier_init(&team->start, NULL, n + 1);
    pthread_barrier_init(&team->finish, NULL, n + 1);
    pthread_mutex_lock(&team->gate);
    for (; good && team->n < n; team->n += good) {
        struct team_member *member = &team->members[team->n];
        *member = (struct team_member){.team = team, .argument = (char *)first + team->n * stride};
        good = thread_start(&member->thread, name, member_main, member, failure);
    }
    team->dismissed = !good;
    pthread_mutex_unlock(&team->gate);
    if (!good)
        let_go(team);
    return good;
}

void team_begin(struct team *team, void (*work)(void *argument))
{
    team->work = work;
    if (team->n > 0)
        pthread_barrier_wait(&team->start);
}

void team_finish(struct team *team)
{
    if (team->n > 0)
        pthread_barrier_wait(&team->finish);
}

void team_end(struct team *team)
{
    if (team->n == 0)
        return;
    team_begin(team, NULL);
    let_go(team);
}
