// A measurement must not outlive the one who asked for it.
#ifndef MOETIER_PARENT_H
#define MOETIER_PARENT_H

// Has the kernel send `signal` when the parent (the thread that started this process) dies.
void die_with_parent(int signal);

#endif
