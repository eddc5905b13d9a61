/* Kernel times of a CUDA process, by NVIDIA's own means: the driver loads this library where CUDA_INJECTION64_PATH
 * names it, and calls InitializeInjection in cuInit (CUPTI documentation, "Injection"). The library asks CUPTI for
 * activity records of kernels, copies and memsets, and appends them to a file in UNIDLE_KERNELS_DIR.
 *
 * No header of CUDA is needed. Prototypes, enumerators and offsets are those of cupti_activity.h, cupti_result.h and
 * cupti_version.h, CUDA 11.0 to 13.x: all records of that time have the fields that are read here at one place
 * (tests/scope/test_scope_kernels_header.py compares them with the header).
 *
 * The process goes on in every case. What fails leaves one line of reason in the file, where there is a file.
 *
 * UNIDLE_KERNELS_DIR   an absolute directory of the user's, made (0700) if only its last part is missing
 * UNIDLE_KERNELS_MIB   the most that the files of one process hold, default 256
 *
 * The file PID-TICKS-GENERATION.kernels, little endian. The newest two generations are kept, each complete in itself.
 *
 *     header  128 bytes, see struct header; `flushed_ns` is rewritten in place
 *     frame   u32 type, u32 size of the whole frame (a multiple of 8), then by type
 *       1     names:     u64 id, u32 length, u32 0, the bytes, padded
 *       2     records:   struct record, as many as fit
 *       3     clock:     i64 to add to CUPTI's times for UTC in nanoseconds; it holds for the records that follow
 *       4     text:      u32 length, u32 1 if recording ended with it, the bytes, padded
 *       5     lost:      u64 records that CUPTI dropped, u64 that were not complete; sums since the start
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KIND_MEMCPY = 1, KIND_MEMSET = 2, KIND_KERNEL = 3, KIND_CONCURRENT_KERNEL = 10 }; /* CUpti_ActivityKind */
enum { FLUSH_FORCED = 1 };                                                              /* CUpti_ActivityFlag */
enum { OLDEST = 13, NEWEST_OF_12 = 999, FIRST_OF_13 = 130000, LAST_OF_13 = 139999 };    /* CUPTI_API_VERSION */

/* Offsets in CUpti_ActivityKernel4 to 11, CUpti_ActivityMemcpy4 to 6, CUpti_ActivityMemset3 and 4. */
enum { KERNEL_START = 16, KERNEL_END = 24, KERNEL_DEVICE = 40, KERNEL_CONTEXT = 44, KERNEL_STREAM = 48,
       KERNEL_CORRELATION = 92, KERNEL_NAME = 104, KERNEL_LEAST = 112 };
enum { COPY_KIND = 4, COPY_BYTES = 8, COPY_START = 16, COPY_END = 24, COPY_DEVICE = 32, COPY_CONTEXT = 36,
       COPY_STREAM = 40, COPY_CORRELATION = 44, COPY_LEAST = 48 }; /* a memset's, too, but for the kind */

typedef uint32_t Result; /* CUptiResult */
static struct {
    Result (*version)(uint32_t *);
    Result (*text)(Result, const char **);
    Result (*timestamp)(uint64_t *);
    Result (*callbacks)(void (*)(uint8_t **, size_t *, size_t *), void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
    Result (*enable)(uint32_t);
    Result (*next)(uint8_t *, size_t, uint8_t **);
    Result (*dropped)(void *, uint32_t, size_t *);
    Result (*flush)(uint32_t);
} cupti;

struct header {
    char magic[8];
    uint32_t version, size, pid, cupti;
    uint64_t ticks, started_ns, limit;
    uint32_t generation;
    int32_t rank;
    uint64_t flushed_ns; /* all that was complete at this time is in the file */
    uint64_t reserved[8];
};
struct record {
    uint32_t kind, correlation;
    uint64_t start, end;
    uint32_t device, context, stream, way;
    uint64_t bytes, name;
};
_Static_assert(sizeof(struct header) == 128 && sizeof(struct record) == 56, "the form of the file");

enum { BUFFER = 1 << 20, BUFFERS = 32, BATCH = 512, NAMES = 1 << 14, LONGEST_NAME = 4096, PERIOD_MS = 250,
       SLICE_MS = 25, EXIT_MS = 2000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the file; never taken by a child, or at exit */
static struct header head = {.magic = "UNIDLEK1", .version = 1, .size = sizeof head, .rank = -1};
static int directory = -1, file = -1;
static dev_t device_of_file;
static ino_t inode_of_file;
static uint64_t written, half; /* of this generation; the most it holds */
static uint64_t names[NAMES];  /* ids that this generation has */
static int n_names;
static struct record batch[BATCH];
static int n_batch;
static uint64_t lost, incomplete, lost_written, incomplete_written;
static int64_t clock_offset;
static int has_clock;
static atomic_int ended, stopping, flushed_last, held;

static uint64_t now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void pause_ms(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* A child of fork has the library, and neither the file nor CUPTI. */
static int is_owner(void) { return head.pid && head.pid == (uint32_t)getpid(); }

/* -- the file ---------------------------------------------------------------------------------- */

/* Programs that close all descriptors may have given the number to a file of their own. */
static int is_ours(void) {
    struct stat seen;
    return file >= 0 && !fstat(file, &seen) && seen.st_dev == device_of_file && seen.st_ino == inode_of_file;
}

struct part { const void *bytes; size_t size; };

static int put_at(const void *bytes, size_t size, uint64_t at) {
    const char *from = bytes;
    while (size) {
        ssize_t done = pwrite(file, from, size, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        from += done, at += (uint64_t)done, size -= (size_t)done;
    }
    return 1;
}

/* What could not be written whole is cut off, and nothing more is written. */
static int put(const struct part *parts, int count) {
    uint64_t at = written;
    if (atomic_load(&ended) || !is_ours()) return atomic_store(&ended, 1), 0;
    for (int i = 0; i < count; at += parts[i++].size)
        if (!put_at(parts[i].bytes, parts[i].size, at)) {
            if (ftruncate(file, (off_t)written)) { /* the reader takes a torn end */ }
            return atomic_store(&ended, 1), 0;
        }
    return written = at, 1;
}

/* A frame of `fixed` bytes and `more` with padding. The last part is zeros. */
static int frame(uint32_t type, const void *fixed, size_t n_fixed, const void *more, size_t n_more) {
    static const char zeros[8];
    size_t pad = -(n_fixed + n_more) & 7;
    uint32_t start[2] = {type, (uint32_t)(8 + n_fixed + n_more + pad)};
    struct part parts[] = {{start, 8}, {fixed, n_fixed}, {more, n_more}, {zeros, pad}};
    return put(parts, 4);
}

static void say(int ends, const char *form, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, form);
    int length = vsnprintf(text, sizeof text, form, arguments);
    va_end(arguments);
    if (length < 0) return;
    uint32_t fixed[2] = {(uint32_t)(length < (int)sizeof text ? length : (int)sizeof text - 1), (uint32_t)ends};
    frame(4, fixed, sizeof fixed, text, fixed[0]);
}

static void name_of(uint32_t generation, char *into, size_t size) {
    snprintf(into, size, "%u-%llu-%u.kernels", head.pid, (unsigned long long)head.ticks, generation);
}

/* The next generation; the one before the last is removed. A process that execs has the same pid and ticks. */
static int open_next(void) {
    char name[64];
    struct stat seen;
    if (file >= 0 && is_ours()) close(file);
    file = -1;
    for (int tries = 0; file < 0 && tries < 10000; tries++) {
        name_of(head.generation, name, sizeof name);
        file = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST) return 0;
        if (file < 0) head.generation++;
    }
    if (file < 0 || fstat(file, &seen)) return 0;
    device_of_file = seen.st_dev, inode_of_file = seen.st_ino, written = 0;
    memset(names, 0, sizeof names);
    n_names = has_clock = 0;
    lost_written = incomplete_written = 0;
    struct part part = {&head, sizeof head};
    if (!put(&part, 1)) return 0;
    if (head.generation >= 2) {
        name_of(head.generation - 2, name, sizeof name);
        unlinkat(directory, name, 0);
    }
    head.generation++;
    return 1;
}

static int is_safe_directory(int fd) {
    struct stat seen;
    return !fstat(fd, &seen) && S_ISDIR(seen.st_mode) && seen.st_uid == geteuid() && !(seen.st_mode & 022);
}

static int open_file(void) {
    const char *path = secure_getenv("UNIDLE_KERNELS_DIR"), *most = secure_getenv("UNIDLE_KERNELS_MIB");
    const char *rank = secure_getenv("RANK");
    if (!path || *path != '/') return 0;
    mkdir(path, 0700);
    directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0 || !is_safe_directory(directory)) return 0;
    if (!rank || !*rank) rank = secure_getenv("UNIDLE_RANK");
    if (rank && *rank >= '0' && *rank <= '9') head.rank = (int32_t)strtol(rank, NULL, 10);
    uint64_t mib = most ? strtoull(most, NULL, 10) : 256;
    if (mib < 1 || mib > 1 << 20) mib = 256;
    half = mib << 19;
    struct rlimit limit; /* beyond it a write would end the process (SIGXFSZ) */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < half)
        half = limit.rlim_cur;
    if (half < 64 << 10) return 0;
    head.limit = 2 * half;
    head.started_ns = now(CLOCK_REALTIME);
    char stat[1024] = "";
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, stat, sizeof stat - 1);
    if (fd >= 0) close(fd);
    char *at = size > 0 ? strrchr(stat, ')') : NULL;
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' '); /* starttime, proc(5) */
    if (at) head.ticks = strtoull(at + 1, NULL, 10);
    return open_next();
}

/* -- records ----------------------------------------------------------------------------------- */

static void put_clock(void) {
    uint64_t best = UINT64_MAX, at = 0;
    int64_t offset = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t before = now(CLOCK_REALTIME), after;
        if (cupti.timestamp(&at)) return;
        after = now(CLOCK_REALTIME);
        if (after - before >= best) continue;
        best = after - before;
        offset = (int64_t)(before + best / 2 - at);
    }
    if (has_clock && llabs(offset - clock_offset) < 1000) return;
    clock_offset = offset, has_clock = 1;
    frame(3, &offset, sizeof offset, NULL, 0);
}

static void put_batch(void) {
    if (n_batch) frame(2, batch, (size_t)n_batch * sizeof *batch, NULL, 0);
    n_batch = 0;
}

static void make_room(size_t size) {
    if (written + size <= half) return;
    if (!is_ours() || !open_next()) atomic_store(&ended, 1);
    else put_clock();
}

/* FNV-1a of the name is its id, so that it means the same in each generation. */
static uint64_t id_of(const char *text) {
    uint64_t id = 14695981039346656037u;
    size_t length = 0;
    if (!text) return 0;
    for (; length < LONGEST_NAME && text[length]; length++) id = (id ^ (uint8_t)text[length]) * 1099511628211u;
    id += !id;
    size_t slot = id % NAMES;
    for (; names[slot]; slot = (slot + 1) % NAMES)
        if (names[slot] == id) return id;
    if (n_names >= NAMES * 3 / 4) return 0;
    struct { uint64_t id; uint32_t length, zero; } fixed = {id, (uint32_t)length, 0};
    if (frame(1, &fixed, sizeof fixed, text, length)) names[slot] = id, n_names++;
    return id;
}

static uint32_t u32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return value; }
static uint64_t u64(const uint8_t *at) { uint64_t value; memcpy(&value, at, 8); return value; }

static int read_record(const uint8_t *from, size_t left, struct record *to) {
    uint32_t kind = u32(from);
    if ((kind == KIND_KERNEL || kind == KIND_CONCURRENT_KERNEL) && left >= KERNEL_LEAST) {
        const char *name;
        memcpy(&name, from + KERNEL_NAME, sizeof name);
        *to = (struct record){
            KIND_KERNEL, u32(from + KERNEL_CORRELATION), u64(from + KERNEL_START), u64(from + KERNEL_END),
            u32(from + KERNEL_DEVICE), u32(from + KERNEL_CONTEXT), u32(from + KERNEL_STREAM), 0, 0, id_of(name)};
    } else if ((kind == KIND_MEMCPY || kind == KIND_MEMSET) && left >= COPY_LEAST) {
        *to = (struct record){
            kind, u32(from + COPY_CORRELATION), u64(from + COPY_START), u64(from + COPY_END), u32(from + COPY_DEVICE),
            u32(from + COPY_CONTEXT), u32(from + COPY_STREAM), kind == KIND_MEMCPY ? from[COPY_KIND] : 0,
            u64(from + COPY_BYTES), 0};
    } else return 0;
    if (to->end && to->end >= to->start) return 1;
    incomplete++;
    return 0;
}

static void put_buffer(uint8_t *buffer, size_t size) {
    uint8_t *at = NULL;
    size_t dropped = 0;
    put_clock();
    while (!atomic_load(&ended) && cupti.next(buffer, size, &at) == 0 && at >= buffer && at + COPY_LEAST <= buffer + size) {
        /* before the name is written, so that both are in one generation */
        if (written + sizeof batch + LONGEST_NAME + 256 > half) put_batch(), make_room(sizeof batch + LONGEST_NAME + 256);
        n_batch += read_record(at, (size_t)(buffer + size - at), batch + n_batch);
        if (n_batch == BATCH) put_batch();
    }
    put_batch();
    if (!cupti.dropped(NULL, 0, &dropped)) lost += dropped;
    if (lost == lost_written && incomplete == incomplete_written) return;
    uint64_t counts[2] = {lost, incomplete};
    if (frame(5, counts, sizeof counts, NULL, 0)) lost_written = lost, incomplete_written = incomplete;
}

static void requested(uint8_t **buffer, size_t *size, size_t *most) {
    void *found = NULL;
    *most = 0;
    /* a slow disk costs records, not memory without end */
    if (atomic_fetch_add(&held, 1) >= BUFFERS || posix_memalign(&found, 8, BUFFER)) {
        atomic_fetch_sub(&held, 1);
        found = NULL;
    }
    *buffer = found;
    *size = found ? BUFFER : 0;
}

/* A write beyond the limit on a file's size sends SIGXFSZ to the thread, which would end the program. */
static int hold_signal(sigset_t *before) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    return pthread_sigmask(SIG_BLOCK, &one, before) ? -1 : 0;
}

static void release_signal(const sigset_t *before, int held_it) {
    static const struct timespec at_once;
    sigset_t one;
    if (held_it) return;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    if (!sigismember(before, SIGXFSZ)) {
        sigtimedwait(&one, NULL, &at_once);
        pthread_sigmask(SIG_SETMASK, before, NULL);
    }
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    if (!buffer) return;
    if (valid && is_owner() && !atomic_load(&ended)) {
        sigset_t before;
        int was = hold_signal(&before);
        pthread_mutex_lock(&lock);
        put_buffer(buffer, valid);
        pthread_mutex_unlock(&lock);
        release_signal(&before, was);
    }
    free(buffer);
    atomic_fetch_sub(&held, 1);
}

static void flush(uint32_t flag) {
    uint64_t at = now(CLOCK_REALTIME);
    cupti.flush(flag);
    pthread_mutex_lock(&lock);
    head.flushed_ns = at;
    if (!atomic_load(&ended) && is_ours()) put_at(&at, sizeof at, offsetof(struct header, flushed_ns));
    pthread_mutex_unlock(&lock);
}

/* CUPTI's own period returns full buffers only (cuptiActivityFlushPeriod): a thread asks for the others, without waiting
 * for what still runs. */
static void *flushing(void *nothing) {
    for (int ms = 0; !atomic_load(&stopping); ms += SLICE_MS) {
        pause_ms(SLICE_MS);
        if (ms < PERIOD_MS || atomic_load(&ended)) continue;
        ms = 0;
        flush(0);
    }
    flush(FLUSH_FORCED);
    atomic_store(&flushed_last, 1);
    return nothing;
}

/* A driver that hangs must not keep the process: it is waited for two seconds at most. */
static void at_exit(void) {
    if (!is_owner() || atomic_load(&ended)) return;
    atomic_store(&stopping, 1);
    for (int ms = 0; ms < EXIT_MS && !atomic_load(&flushed_last); ms++) pause_ms(1);
    atomic_store(&ended, 1);
}

/* -- CUPTI ------------------------------------------------------------------------------------- */

static const char *const SONAMES[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so.11.7",
    "libcupti.so.11.6", "libcupti.so.11.5", "libcupti.so.11.4", "libcupti.so.11.3", "libcupti.so.11.2",
    "libcupti.so.11.1", "libcupti.so.11.0", "libcupti.so.11", "libcupti.so"};
enum { N_SONAMES = sizeof SONAMES / sizeof *SONAMES };

/* Where wheels and toolkits have it, from the directory of libcudart or PyTorch's libraries. */
static const char *const PLACES[] = {".", "../../cuda_cupti/lib", "../../nvidia/cuda_cupti/lib", "../../nvidia/cu13/lib",
    "../extras/CUPTI/lib64", "../../../extras/CUPTI/lib64"};

static void *next_to(const char *path, int major) {
    char name[PATH_MAX + 64];
    const char *end = strrchr(path, '/');
    for (size_t place = 0; place < sizeof PLACES / sizeof *PLACES; place++)
        for (int i = 0; i < N_SONAMES; i++) {
            if (major && atoi(SONAMES[i] + strlen("libcupti.so") + (SONAMES[i][11] != 0)) != major) continue;
            snprintf(name, sizeof name, "%.*s/%s/%s", (int)(end - path), path, PLACES[place], SONAMES[i]);
            void *found = access(name, R_OK) ? NULL : dlopen(name, RTLD_LAZY | RTLD_LOCAL);
            if (found) return found;
        }
    return NULL;
}

/* Of the version that the process uses, where its runtime library tells it. */
static void *beside_what_is_mapped(void) {
    static const char *const known[] = {"/libcudart.so", "/libtorch_cuda.so", "/libtorch_cpu.so"};
    char line[PATH_MAX + 128];
    void *found = NULL;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        if (!path) continue;
        path[strcspn(path, "\n")] = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known && !found; i++) {
            char *at = strstr(path, known[i]);
            if (at) found = next_to(path, at[13] == '.' ? atoi(at + 14) : 0);
        }
    }
    if (maps) fclose(maps);
    return found;
}

static void *find_cupti(void) {
    void *found = NULL;
    for (int i = 0; i < N_SONAMES && !found; i++) found = dlopen(SONAMES[i], RTLD_LAZY | RTLD_NOLOAD);
    if (!found) found = beside_what_is_mapped();
    for (int i = 0; i < N_SONAMES && !found; i++) found = dlopen(SONAMES[i], RTLD_LAZY | RTLD_LOCAL);
    return found;
}

static int resolve(void *library) {
    const struct { const char *name; void *into; } wanted[] = {
        {"cuptiGetVersion", &cupti.version}, {"cuptiGetResultString", &cupti.text},
        {"cuptiGetTimestamp", &cupti.timestamp}, {"cuptiActivityRegisterCallbacks", &cupti.callbacks},
        {"cuptiActivityEnable", &cupti.enable}, {"cuptiActivityGetNextRecord", &cupti.next},
        {"cuptiActivityGetNumDroppedRecords", &cupti.dropped}, {"cuptiActivityFlushAll", &cupti.flush}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found) return say(1, "CUPTI has no %s", wanted[i].name), 0;
        memcpy(wanted[i].into, &found, sizeof found);
    }
    return 1;
}

static int works(const char *what, Result code) {
    const char *text = NULL;
    if (!code) return 1;
    if (cupti.text(code, &text)) text = NULL;
    say(1, "%s failed: %s (CUPTI error %u)", what, text ? text : "no text", code);
    return 0;
}

static void start_thread(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    int code = pthread_create(&thread, &attributes, flushing, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (code) say(0, "no thread could be started (%s): records come late", strerror(code));
    else atexit(at_exit);
}

static int start(void) {
    void *library = find_cupti();
    if (!library) return say(1, "no libcupti.so was found: install nvidia-cuda-cupti, or set LD_LIBRARY_PATH"), 0;
    uint32_t version = 0;
    if (!resolve(library) || !works("cuptiGetVersion", cupti.version(&version))) return 0;
    if (version < OLDEST || (version > NEWEST_OF_12 && version < FIRST_OF_13) || version > LAST_OF_13)
        return say(1, "CUPTI has version %u, known are those of CUDA 11 to 13", version), 0;
    head.cupti = version;
    if (!put_at(&version, sizeof version, offsetof(struct header, cupti))) return 0;
    put_clock();
    if (!works("cuptiActivityRegisterCallbacks", cupti.callbacks(requested, completed))) return 0;
    if (!works("tracing of kernels", cupti.enable(KIND_CONCURRENT_KERNEL))) return 0;
    if (cupti.enable(KIND_MEMCPY) | cupti.enable(KIND_MEMSET)) say(0, "copies or memsets are not traced");
    start_thread();
    return 1;
}

/* int InitializeInjection(void): the CUDA driver calls it once, in cuInit. */
__attribute__((visibility("default"))) int InitializeInjection(void) {
    static atomic_int called;
    int error = errno;
    if (!atomic_exchange(&called, 1)) {
        head.pid = (uint32_t)getpid();
        if (!open_file() || !start()) atomic_store(&ended, 1);
    }
    errno = error;
    return 1; /* also on failure: what the driver makes of another answer is not documented */
}
