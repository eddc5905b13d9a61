/* A simulated disk: loaded into every process of a run (LD_PRELOAD), it records what is done to files below one
   directory, in order over all processes, and makes one call fail or cut the power.

   UNIDLE_DISK_ROOT    the directory; files whose names end in "-shm" are left alone (they are memory, mapped)
   UNIDLE_DISK_NOTES   a directory of the test: nothing is recorded, but no write reaches it after the power cut
   UNIDLE_DISK_STATE   struct state, shared by all processes of the run
   UNIDLE_DISK_RECORD  what was done, one struct record with its paths and data for each call
   UNIDLE_DISK_ROLE    who this process is, if that is one of its arguments; a supervisor is "JOB/ATTEMPT/rankK"
   UNIDLE_DISK_FAULT   "ROLE CLASS NUMBER KIND": the NUMBER-th call of a class by that role
   UNIDLE_DISK_LIES    any value: what is synced is not recorded as synced

   The calls are those that Python and SQLite make through the C library. What the library opens for itself (files of a
   process that is started) is seen when it is written. Nothing waits for the real disk. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, SYNC, NAME, READ, CLASSES };
static const char *const CLASS_NAMES[CLASSES] = {"open", "write", "sync", "name", "read"};

struct state {
    pthread_mutex_t lock;
    int cut;       /* the power is off: no process does anything any more */
    int disarmed;  /* the fault is not to happen any more */
    int happened;  /* it did */
    int full_left; /* so many calls that need space still fail with ENOSPC */
    int cut_in;    /* after so many calls the power is cut */
};

struct record {
    char op; /* C create, W write, T truncate, S sync, F failed sync, R rename, U unlink, M mkdir, D rmdir */
    char pad[7];
    uint64_t inode, offset;
    uint32_t data, path, other; /* lengths */
    uint32_t pad2;
};

static struct state *state;
static char record_path[PATH_MAX], root[PATH_MAX], notes[PATH_MAX], role[256], kind[32];
static size_t root_length, notes_length;
static int fault_class = -1, fault_at, lies, counts[CLASSES];

void simulated_disk_init(struct state *fresh) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&fresh->lock, &attributes);
}

size_t simulated_disk_flags(void) { return offsetof(struct state, cut); }

#define SUPERVISOR "/supervisor/entry.py" /* as unidle.engine.local.ranks.spawn starts it */
#define SUPERVISOR_LENGTH (sizeof SUPERVISOR - 1)

static void find_role(void) {
    char line[8192];
    const char *given = getenv("UNIDLE_DISK_ROLE");
    snprintf(role, sizeof role, "%s", given ? given : "");
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : syscall(SYS_read, fd, line, sizeof line - 1);
    if (fd >= 0) syscall(SYS_close, fd);
    if (length <= 0) return;
    line[length] = 0;
    int supervises = 0, mine = 0;
    for (char *word = line; word < line + length; word += strlen(word) + 1) {
        size_t n = strlen(word);
        if (supervises) { /* the rank's directory follows */
            char *at = word + n;
            for (int parts = 0; at > word && parts < 3;)
                if (*--at == '/') parts++;
            snprintf(role, sizeof role, "%.255s", *at == '/' ? at + 1 : at);
            return;
        }
        supervises = n > SUPERVISOR_LENGTH && !strcmp(word + n - SUPERVISOR_LENGTH, SUPERVISOR);
        mine = mine || !strcmp(word, role);
    }
    if (!mine) snprintf(role, sizeof role, "other"); /* started by one that has the role */
}

static void begin(void) {
    const char *at = getenv("UNIDLE_DISK_ROOT"), *aside = getenv("UNIDLE_DISK_NOTES");
    const char *shared = getenv("UNIDLE_DISK_STATE"), *record = getenv("UNIDLE_DISK_RECORD");
    const char *fault = getenv("UNIDLE_DISK_FAULT");
    if (!at || !aside || !shared || !record) return;
    root_length = (size_t)snprintf(root, sizeof root, "%s", at);
    notes_length = (size_t)snprintf(notes, sizeof notes, "%s", aside);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, shared, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    struct state *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (mapped == MAP_FAILED) return;
    snprintf(record_path, sizeof record_path, "%s", record);
    lies = getenv("UNIDLE_DISK_LIES") != NULL;
    if (fault) {
        char who[256], class[16];
        if (sscanf(fault, "%255s %15s %d %31s", who, class, &fault_at, kind) == 4 && !strcmp(who, role))
            for (int c = 0; c < CLASSES; c++)
                if (!strcmp(class, CLASS_NAMES[c])) fault_class = c;
    }
    state = mapped;
}

__attribute__((constructor)) static void loaded(void) {
    find_role();
    begin();
}

/* For a process that was forked from one without a disk: it is the one that UNIDLE_DISK_ROLE names. */
void simulated_disk_forked(void) {
    const char *given = getenv("UNIDLE_DISK_ROLE");
    snprintf(role, sizeof role, "%s", given ? given : "");
    begin();
}

static void lock(void) {
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD) pthread_mutex_consistent(&state->lock);
    if (state->cut) {
        pthread_mutex_unlock(&state->lock);
        raise(SIGKILL);
    }
}

static void unlock(void) { pthread_mutex_unlock(&state->lock); }

static int below(const char *path, const char *top, size_t length) {
    return !strncmp(path, top, length) && (path[length] == '/' || path[length] == 0);
}

static int is_memory(const char *path) {
    size_t n = strlen(path);
    return n > 4 && !strcmp(path + n - 4, "-shm");
}

static int on_disk(const char *path) { return below(path, root, root_length) && !is_memory(path); }

/* None is written after the cut. */
static void guard_notes(const char *path) {
    if (state && below(path, notes, notes_length)) {
        lock();
        unlock();
    }
}

static int fd_path(int fd, char *path, struct stat *found) {
    char link[64];
    if (!state || fd < 0 || fstat(fd, found) || !(S_ISREG(found->st_mode) || S_ISDIR(found->st_mode))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    guard_notes(path);
    return on_disk(path);
}

static int at_path(int dir, const char *name, char *path) {
    if (!state || !name) return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else if (dir == AT_FDCWD) {
        if (!getcwd(path, PATH_MAX - 1)) return 0;
        size_t n = strlen(path);
        snprintf(path + n, PATH_MAX - n, "/%s", name);
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t n = readlink(link, path, PATH_MAX - 1);
        if (n <= 0) return 0;
        snprintf(path + n, PATH_MAX - (size_t)n, "/%s", name);
    }
    guard_notes(path);
    return on_disk(path);
}

static void put(char op, uint64_t inode, uint64_t offset, const void *data, size_t length, const char *path,
                const char *other) {
    /* opened for each call: a program may close every descriptor that it does not know */
    int fd = (int)syscall(SYS_openat, AT_FDCWD, record_path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) abort();
    struct record head = {.op = op, .inode = inode, .offset = offset, .data = (uint32_t)length,
                          .path = (uint32_t)strlen(path), .other = other ? (uint32_t)strlen(other) : 0};
    struct iovec parts[4] = {{&head, sizeof head}, {(void *)path, head.path},
                             {(void *)other, head.other}, {(void *)data, length}};
    syscall(SYS_writev, fd, parts, 4);
    syscall(SYS_close, fd);
}

static void die(void) {
    state->happened = 1;
    unlock();
    raise(SIGKILL);
}

static void cut(void) {
    state->happened = state->cut = 1;
    unlock();
    raise(SIGKILL);
}

/* Count a call; the error that it is to fail with, 0 for none, or -1 where it is to be torn. Holds the lock. */
static int fault(int class, int needs_space) {
    if (state->cut_in > 0 && !--state->cut_in) cut();
    if (state->full_left > 0 && needs_space) {
        state->full_left--;
        return ENOSPC;
    }
    if (++counts[class] < fault_at || class != fault_class || state->disarmed || state->happened) return 0;
    if (!strncmp(kind, "eio", 3)) {
        state->happened = 1;
        state->cut_in = atoi(kind + 3);
        return EIO;
    }
    if (!strncmp(kind, "full", 4)) {
        if (!needs_space) return 0; /* the next one that does */
        state->happened = 1;
        state->full_left = atoi(kind + 4) - 1;
        return ENOSPC;
    }
    if (!strcmp(kind, "torn")) return -1;
    if (!strcmp(kind, "kill")) die();
    if (!strcmp(kind, "cut")) cut();
    if (!strcmp(kind, "cut-after")) return -2;
    return 0;
}

/* After a call that was done: the power may fail just then. */
static void done(int verdict) {
    if (verdict == -2) cut();
    if (verdict == -1) die();
    unlock();
}

static int refuse(int error) {
    unlock();
    errno = error;
    return -1;
}

static int open_at(int dir, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!at_path(dir, name, path)) return (int)syscall(SYS_openat, dir, name, flags, mode);
    struct stat before, after;
    lock();
    int there = !lstat(path, &before);
    int verdict = fault(OPEN, (flags & O_CREAT) && !there);
    if (verdict > 0) return refuse(verdict);
    int fd = (int)syscall(SYS_openat, dir, name, flags, mode), error = errno;
    if (fd >= 0 && !fstat(fd, &after) && S_ISREG(after.st_mode)) {
        if (!there) put('C', after.st_ino, 0, NULL, 0, path, NULL);
        else if ((flags & O_TRUNC) && before.st_size) put('T', after.st_ino, 0, NULL, 0, path, NULL);
    }
    done(verdict);
    errno = error;
    return fd;
}

#define OPENED(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }
int open(const char *name, int flags, ...) { OPENED(flags, mode) return open_at(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { OPENED(flags, mode) return open_at(AT_FDCWD, name, flags, mode); }
int openat(int dir, const char *name, int flags, ...) { OPENED(flags, mode) return open_at(dir, name, flags, mode); }
int openat64(int dir, const char *name, int flags, ...) { OPENED(flags, mode) return open_at(dir, name, flags, mode); }

static ssize_t write_at(int fd, const void *data, size_t length, off_t offset) {
    char path[PATH_MAX];
    struct stat found;
    int here = offset < 0;
    if (!fd_path(fd, path, &found))
        return here ? syscall(SYS_write, fd, data, length) : syscall(SYS_pwrite64, fd, data, length, offset);
    lock();
    int verdict = fault(WRITE, 1);
    if (verdict > 0) return refuse(verdict);
    if (verdict == -1) length /= 2;
    ssize_t n = here ? syscall(SYS_write, fd, data, length) : syscall(SYS_pwrite64, fd, data, length, offset);
    int error = errno;
    if (n > 0) {
        if (here) offset = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) - n;
        put('W', found.st_ino, (uint64_t)offset, data, (size_t)n, path, NULL);
    }
    done(verdict);
    errno = error;
    return n;
}

ssize_t write(int fd, const void *data, size_t length) { return write_at(fd, data, length, -1); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return write_at(fd, data, length, offset); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return write_at(fd, data, length, offset); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    struct stat found;
    if (!fd_path(fd, path, &found)) return syscall(SYS_writev, fd, parts, count);
    for (int k = 0; k < count; k++) /* a short write is allowed: the first part that is not empty */
        if (parts[k].iov_len) return write_at(fd, parts[k].iov_base, parts[k].iov_len, -1);
    return 0;
}

static int reads(int fd) {
    char path[PATH_MAX];
    struct stat found;
    if (fault_class != READ || !fd_path(fd, path, &found)) return 0;
    lock();
    int verdict = fault(READ, 0);
    unlock();
    return verdict > 0 ? verdict : 0;
}

#define READS(fd) \
    int error = reads(fd); \
    if (error) return errno = error, -1
ssize_t read(int fd, void *data, size_t length) { READS(fd); return syscall(SYS_read, fd, data, length); }
ssize_t pread(int fd, void *data, size_t length, off_t offset) { READS(fd); return syscall(SYS_pread64, fd, data, length, offset); }
ssize_t pread64(int fd, void *data, size_t length, off64_t offset) { READS(fd); return syscall(SYS_pread64, fd, data, length, offset); }

static int sync_of(int fd, long number) {
    char path[PATH_MAX];
    struct stat found;
    if (!fd_path(fd, path, &found)) return (int)syscall(number, fd);
    lock();
    int verdict = fault(SYNC, 0);
    if (verdict > 0) {
        put('F', found.st_ino, 0, NULL, 0, path, NULL);
        return refuse(verdict);
    }
    if (!lies) put('S', found.st_ino, 0, NULL, 0, path, NULL); /* the real disk is not waited for: this one has it now */
    done(verdict);
    return 0;
}

int fsync(int fd) { return sync_of(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_of(fd, SYS_fdatasync); }

static int truncate_of(int fd, off_t size) {
    char path[PATH_MAX];
    struct stat found;
    if (!fd_path(fd, path, &found)) return (int)syscall(SYS_ftruncate, fd, size);
    lock();
    int verdict = fault(WRITE, size > found.st_size);
    if (verdict > 0) return refuse(verdict);
    int result = (int)syscall(SYS_ftruncate, fd, size), error = errno;
    if (!result) put('T', found.st_ino, (uint64_t)size, NULL, 0, path, NULL);
    done(verdict);
    errno = error;
    return result;
}

int ftruncate(int fd, off_t size) { return truncate_of(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncate_of(fd, size); }

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    char path[PATH_MAX], other[PATH_MAX];
    int mine = at_path(from_dir, from, path) & at_path(to_dir, to, other);
    if (!mine) return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
    lock();
    int verdict = fault(NAME, 1);
    if (verdict > 0) return refuse(verdict);
    int result = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0), error = errno;
    if (!result) put('R', 0, 0, NULL, 0, path, other);
    done(verdict);
    errno = error;
    return result;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

static int remove_at(int dir, const char *name, int flags) {
    char path[PATH_MAX];
    if (!at_path(dir, name, path)) return (int)syscall(SYS_unlinkat, dir, name, flags);
    lock();
    int verdict = fault(NAME, 0);
    if (verdict > 0) return refuse(verdict);
    int result = (int)syscall(SYS_unlinkat, dir, name, flags), error = errno;
    if (!result) put(flags & AT_REMOVEDIR ? 'D' : 'U', 0, 0, NULL, 0, path, NULL);
    done(verdict);
    errno = error;
    return result;
}
int unlink(const char *name) { return remove_at(AT_FDCWD, name, 0); }
int unlinkat(int dir, const char *name, int flags) { return remove_at(dir, name, flags); }
int rmdir(const char *name) { return remove_at(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int dir, const char *name, mode_t mode) {
    char path[PATH_MAX];
    if (!at_path(dir, name, path)) return (int)syscall(SYS_mkdirat, dir, name, mode);
    lock();
    int verdict = fault(NAME, 1);
    if (verdict > 0) return refuse(verdict);
    int result = (int)syscall(SYS_mkdirat, dir, name, mode), error = errno;
    if (!result) put('M', 0, 0, NULL, 0, path, NULL);
    done(verdict);
    errno = error;
    return result;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
