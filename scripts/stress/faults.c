/* A disk that fails on demand and logs its operations, for scripts/stress/torture. Linux on x86-64 and aarch64.

   arm() installs a seccomp filter. It passes every system call that can change a file to a handler in this process,
   whichever library makes the call. Changes through a memory map pass unseen; powerloss.py finds them when it replays
   the log. The handler counts the calls below `root`. At the chosen call it kills the process or returns an error. It
   logs each call that succeeds, with its data, and each error. It ignores TensorBoard's files: a thread writes them,
   so the calls have no fixed order. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#define RESULT(context) ((context)->uc_mcontext.gregs[REG_RAX])
static const int REGISTERS[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8};
#define ARGUMENT(context, i) ((context)->uc_mcontext.gregs[REGISTERS[i]])
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#define RESULT(context) ((context)->uc_mcontext.regs[0])
#define ARGUMENT(context, i) ((context)->uc_mcontext.regs[i])
#else
#error "only x86-64 and aarch64"
#endif

#define OURS 0x6d696e69 /* sixth argument of the handler's own calls */
#define NONE -1         /* no such argument */

/* The kind of each call, as in powerloss.Record; x for calls that powerloss.py does not model. The numbers say which
   arguments are a file, a folder and a path in it, and a second folder and path. */
static const struct call {
    long number;
    char kind;
    int file, folder, path, folder2, path2;
} CALLS[] = {
    {SYS_openat, 'o', NONE, 0, 1, NONE, NONE},
    {SYS_write, 'w', 0, NONE, NONE, NONE, NONE},
    {SYS_pwrite64, 'w', 0, NONE, NONE, NONE, NONE},
    {SYS_writev, 'w', 0, NONE, NONE, NONE, NONE},
    {SYS_pwritev, 'w', 0, NONE, NONE, NONE, NONE},
    {SYS_truncate, 't', NONE, NONE, 0, NONE, NONE},
    {SYS_ftruncate, 't', 0, NONE, NONE, NONE, NONE},
    {SYS_renameat2, 'r', NONE, 0, 1, 2, 3},
    {SYS_unlinkat, 'u', NONE, 0, 1, NONE, NONE},
    {SYS_mkdirat, 'm', NONE, 0, 1, NONE, NONE},
    {SYS_fsync, 's', 0, NONE, NONE, NONE, NONE},
    {SYS_fdatasync, 's', 0, NONE, NONE, NONE, NONE},
#ifdef SYS_renameat
    {SYS_renameat, 'r', NONE, 0, 1, 2, 3},
#endif
#ifdef SYS_open
    {SYS_open, 'o', NONE, NONE, 0, NONE, NONE},
    {SYS_creat, 'x', NONE, NONE, 0, NONE, NONE},
    {SYS_rename, 'r', NONE, NONE, 0, NONE, 1},
    {SYS_unlink, 'u', NONE, NONE, 0, NONE, NONE},
    {SYS_rmdir, 'd', NONE, NONE, 0, NONE, NONE},
    {SYS_mkdir, 'm', NONE, NONE, 0, NONE, NONE},
    {SYS_link, 'x', NONE, NONE, 0, NONE, 1},
    {SYS_symlink, 'x', NONE, NONE, 1, NONE, NONE},
#endif
    {SYS_linkat, 'x', NONE, 0, 1, 2, 3},
    {SYS_symlinkat, 'x', NONE, 1, 2, NONE, NONE},
    {SYS_fallocate, 'x', 0, NONE, NONE, NONE, NONE},
    {SYS_copy_file_range, 'x', 2, NONE, NONE, NONE, NONE},
    {SYS_sendfile, 'x', 0, NONE, NONE, NONE, NONE},
    {SYS_splice, 'x', 2, NONE, NONE, NONE, NONE},
    {SYS_pwritev2, 'x', 0, NONE, NONE, NONE, NONE},
};
#define COUNT (sizeof CALLS / sizeof *CALLS)

static char root[4096];
static char kinds[16]; /* the kinds of calls that fail after the chosen one */
static long at, done;
static int half, fault, log_file;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

static long direct(long number, long a, long b, long c, long d, long e) {
    long result = syscall(number, a, b, c, d, e, (long)OURS);
    return result == -1 ? -errno : result;
}

static int below_root(const char *path) {
    size_t length = strlen(root);
    if (strstr(path, "/tensorboard") || strstr(path, "/log.txt"))
        return 0; /* as read_image of powerloss.py */
    return !strncmp(path, root, length) && (path[length] == 0 || path[length] == '/');
}

/* Write the absolute path of an open file, or of a path in a folder, into `full`. */
static void find(char *full, size_t size, int folder, const char *path) {
    if (path && path[0] == '/') {
        snprintf(full, size, "%s", path);
        return;
    }
    char link[64];
    if (folder == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, full, size - 1);
    full[length < 0 ? 0 : length] = 0;
    if (path)
        snprintf(full + strlen(full), size - strlen(full), "/%s", path);
}

static void write_log(char kind, int64_t number, const char *path, const char *path2, const struct iovec *data, int n,
                      size_t length) {
    if (log_file < 0)
        return;
    struct {
        int64_t kind, call, number, path, path2, data;
    } head = {kind, done, number, strlen(path), strlen(path2), length};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, head.path}, {(void *)path2, head.path2}};
    long expected = sizeof head + head.path + head.path2;
    if (direct(SYS_writev, log_file, (long)parts, 3, 0, 0) != expected)
        abort();
    for (int i = 0; i < n && length; i++) {
        size_t part = data[i].iov_len < length ? data[i].iov_len : length;
        if (direct(SYS_write, log_file, (long)data[i].iov_base, part, 0, 0) != (long)part)
            abort();
        length -= part;
    }
}

static long handle(const struct call *call, const long *a) {
    char path[4096] = "", path2[4096] = "", kind = call->kind;
    if (kind == 'o' && !(a[call->path + 1] & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)))
        return direct(call->number, a[0], a[1], a[2], a[3], a[4]);
    if (call->file != NONE)
        find(path, sizeof path, a[call->file], NULL);
    else
        find(path, sizeof path, call->folder == NONE ? AT_FDCWD : a[call->folder], (const char *)a[call->path]);
    if (call->path2 != NONE)
        find(path2, sizeof path2, call->folder2 == NONE ? AT_FDCWD : a[call->folder2], (const char *)a[call->path2]);
    if (!below_root(path) && !below_root(path2))
        return direct(call->number, a[0], a[1], a[2], a[3], a[4]);
    if (call->number == SYS_unlinkat && a[2] & AT_REMOVEDIR)
        kind = 'd';

    pthread_mutex_lock(&one);
    done++;
    long result;
    if (half && done == at && call->number == SYS_write) { /* the caller writes the rest in its next call */
        result = direct(call->number, a[0], a[1], (a[2] + 1) / 2, 0, 0);
        half = 0, at++;
    } else if (fault && (done == at || (done > at && strchr(kinds, kind)))) {
        if (fault < 0)
            direct(SYS_kill, getpid(), -fault, 0, 0, 0);
        result = -fault;
    } else {
        result = direct(call->number, a[0], a[1], a[2], a[3], a[4]);
    }
    if (result >= 0) {
        struct iovec single = {(void *)a[1], result};
        int vector = call->number == SYS_writev || call->number == SYS_pwritev;
        int64_t number = 0;
        if (kind == 'o')
            number = a[call->path + 1] & O_TRUNC;
        else if (kind == 't')
            number = a[1];
        else if (kind == 'w')
            number = call->number == SYS_pwrite64 || call->number == SYS_pwritev ? a[3]
                                                                              : lseek(a[0], 0, SEEK_CUR) - result;
        if (kind == 'w')
            write_log(kind, number, path, path2, vector ? (struct iovec *)a[1] : &single, vector ? a[2] : 1, result);
        else
            write_log(kind, number, path, path2, NULL, 0, 0);
    }
    if (result < 0)
        write_log('E', -result, path, path2, NULL, 0, 0);
    pthread_mutex_unlock(&one);
    return result;
}

static void on_call(int signal, siginfo_t *info, void *context) {
    int before = errno;
    long arguments[5];
    for (int i = 0; i < 5; i++)
        arguments[i] = ARGUMENT((ucontext_t *)context, i);
    for (size_t i = 0; i < COUNT; i++)
        if (CALLS[i].number == info->si_syscall)
            RESULT((ucontext_t *)context) = handle(&CALLS[i], arguments);
    errno = before;
    (void)signal;
}

/* Write a text into the log. */
void mark(const char *text) {
    pthread_mutex_lock(&one);
    write_log('M', 0, text, "", NULL, 0, 0);
    pthread_mutex_unlock(&one);
}

/* Fail at the call with the number `at_call` below `folder` (0: never) with the errno `what`. If `what` is negative, send
   that signal to this process instead. From then on, all calls of the kinds in `then` fail, too. If `halve` is set, do
   half of a write first, and fail at the rest. Log to the open file `log` unless it is -1. Return 0 or an errno. */
int arm(const char *folder, long at_call, int halve, int what, const char *then, int log) {
    snprintf(root, sizeof root, "%s", folder);
    snprintf(kinds, sizeof kinds, "%s", then);
    at = at_call, half = halve, fault = at_call ? what : 0, log_file = log, done = 0;
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO};
    sigfillset(&action.sa_mask); /* no other signal handler may run while `one` is locked */
    struct sock_filter filter[COUNT + 9] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OURS, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (size_t i = 0; i < COUNT; i++)
        filter[7 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i].number, COUNT - i, 0);
    filter[7 + COUNT] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[8 + COUNT] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {COUNT + 9, filter};
    if (sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? errno : 0;
}
