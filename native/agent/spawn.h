// Starting a process of its own session, with pipes.
#ifndef MOETIER_SPAWN_H
#define MOETIER_SPAWN_H

#include <sys/types.h>

// Starts `argv` (looked for on PATH) with pipes as stdin, stdout and stderr; `pipes` are our ends, which do not block. Returns 0
// or the errno value of what failed, the execution included.
int spawn(char *const *argv, pid_t *pid, int pipes[3]);

// Sets how willingly the kernel ends this process for memory; a lower score than the inherited one takes a capability.
void set_oom_score(const char *score);

#endif
