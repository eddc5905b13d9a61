/* A libcuda.so.1 and a libcupti.so.12 that play, for machines without a GPU.
 *
 *     cc -shared -fPIC -DDRIVER -Wl,-soname,libcuda.so.1 -o libcuda.so.1 played_cupti.c
 *     cc -shared -fPIC -Wl,-soname,libcupti.so.12 -o libcupti.so.12 played_cupti.c
 *
 * cuInit loads what CUDA_INJECTION64_PATH names and calls InitializeInjection, as the driver does. The other library has
 * CUPTI's activity functions by the API reference, and played_kernel and played_copy, which make a record. Its clock is
 * not that of UTC. PLAYED_REFUSES=FUNCTION: that function fails with 35; PLAYED_HANGS=1: a forced flush never returns;
 * PLAYED_VERSION=N: what cuptiGetVersion gives.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef DRIVER
int cuInit(unsigned flags) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    int (*start)(void) = NULL;
    (void)flags;
    if (library) *(void **)&start = dlsym(library, "InitializeInjection");
    if (start) start();
    return 0;
}
#else
typedef struct { /* CUpti_ActivityKernel9, CUDA 12 */
    uint32_t kind; uint8_t cache, shared; uint16_t registers; uint32_t requested, executed;
    uint64_t start, end, completed; uint32_t device, context, stream;
    int32_t grid[3], block[3], memory[2]; uint32_t local, total, correlation; int64_t grid_id; const char *name;
    char rest[208 - 112];
} __attribute__((packed, aligned(8))) Kernel;
typedef struct { /* CUpti_ActivityMemcpy6 */
    uint32_t kind; uint8_t way, from, to, flags; uint64_t bytes, start, end; uint32_t device, context, stream, correlation;
    char rest[96 - 48];
} __attribute__((packed, aligned(8))) Copy;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void (*requested)(uint8_t **, size_t *, size_t *);
static void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t);
static uint8_t *buffer;
static size_t size, valid, dropped, enabled;

static uint32_t refused(const char *function) {
    const char *wanted = getenv("PLAYED_REFUSES");
    return wanted && !strcmp(wanted, function) ? 35 : 0;
}
uint32_t cuptiGetVersion(uint32_t *version) {
    const char *wanted = getenv("PLAYED_VERSION");
    return *version = wanted ? (uint32_t)atoi(wanted) : 26, refused(__func__);
}
uint32_t cuptiGetResultString(uint32_t code, const char **text) {
    return *text = code == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_UNKNOWN", 0;
}
uint32_t cuptiGetTimestamp(uint64_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return *at = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + 777000000000u, 0;
}
uint32_t cuptiActivityRegisterCallbacks(void (*a)(uint8_t **, size_t *, size_t *),
                                        void (*b)(void *, uint32_t, uint8_t *, size_t, size_t)) {
    if (refused(__func__)) return 35;
    return requested = a, completed = b, 0;
}
uint32_t cuptiActivityEnable(uint32_t kind) { return enabled |= 1u << kind, refused(__func__); }
uint32_t cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    return (void)context, (void)stream, *count = dropped, dropped = 0, 0;
}
static size_t size_of(const uint8_t *record) { return *(const uint32_t *)record == 10 ? sizeof(Kernel) : sizeof(Copy); }
uint32_t cuptiActivityGetNextRecord(uint8_t *from, size_t left, uint8_t **record) {
    uint8_t *next = *record ? *record + size_of(*record) : from;
    if (next >= from + left) return 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED */
    return *record = next, 0;
}
static void give(void) {
    uint8_t *full = buffer;
    size_t n = valid, all = size;
    buffer = NULL, valid = 0;
    if (full) completed(NULL, 0, full, all, n);
}
uint32_t cuptiActivityFlushAll(uint32_t flag) {
    while (flag && getenv("PLAYED_HANGS")) pause();
    pthread_mutex_lock(&lock);
    give();
    pthread_mutex_unlock(&lock);
    return 0;
}
static void add(const void *record, size_t length, uint32_t kind) {
    size_t most;
    pthread_mutex_lock(&lock);
    if (requested && enabled >> kind & 1) {
        if (buffer && valid + length > size) give();
        if (!buffer) requested(&buffer, &size, &most);
        if (buffer) memcpy(buffer + valid, record, length), valid += length;
        else dropped++;
    }
    pthread_mutex_unlock(&lock);
}
void played_kernel(const char *name, uint32_t device, uint32_t stream, uint32_t correlation, uint64_t ns) {
    uint64_t now;
    cuptiGetTimestamp(&now);
    Kernel one = {.kind = 10, .start = now - ns, .end = ns ? now : 0, .device = device, .context = 1, .stream = stream,
                  .correlation = correlation, .name = name};
    add(&one, sizeof one, 10);
}
void played_copy(uint8_t way, uint64_t bytes, uint64_t ns) {
    uint64_t now;
    cuptiGetTimestamp(&now);
    Copy one = {.kind = 1, .way = way, .bytes = bytes, .start = now - ns, .end = now, .context = 1, .stream = 7};
    add(&one, sizeof one, 1);
}
#endif
