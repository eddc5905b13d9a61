/* A libnvidia-ml.so.1 that plays a machine from a text file, for machines without a GPU.
 *
 *     cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 played.c
 *     LD_LIBRARY_PATH=DIRECTORY UNIDLE_PLAYED_NVML=machine.nvml unidle doctor
 *
 * Signatures, structures, error codes and the ways to ask twice (first for the size) are those of the NVML API
 * reference. A line of the file is one answer; of several that fit the last one counts, and what no line answers is
 * not supported (3):
 *
 *     include FILE                          the lines of another file of the same directory
 *     FUNCTION ARGUMENT... = VALUE...       it succeeds and returns these values
 *     FUNCTION ARGUMENT... ! CODE           it fails with this nvmlReturn_t; `hang`: it does not return while that stands
 *     event NUMBER GPU = TYPE DATA          an event set that has the GPU registered is given it, once
 *
 * FUNCTION has no version suffix, ARGUMENT is the device's index (INDEX.K: the MIG device K of it; INDEX/K: its GPU
 * instance K) or a number. Instead of a name `*` stands for any, instead of a number N-M does; with `*` as FUNCTION
 * further arguments are not looked at. The file may change while it is played: the next call reads it again.
 *
 * With -DOLD_DRIVER the library lacks functions that NVIDIA's driver 450 did not have.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10,
       UNKNOWN = 999, VERSION_MISMATCH = 25, HANG = -1 };
enum { ARGUMENTS = 5, HANDLES = 4096, EVENTS = 256, GPUS = 64 };

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { char name[24]; } Handle; /* devices, MIG devices, GPU and compute instances */
typedef struct { char *function, *arguments[ARGUMENTS], *value; int count, code; } Line;
typedef struct { u32 registered[GPUS]; } EventSet;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Line *lines;
static int n_lines, capacity, started, n_handles, delivered;
static struct stat last;
static Handle handles[HANDLES];

/* -- the file ---------------------------------------------------------------------------------- */

static int code_of(const char *text) { return strcmp(text, "hang") ? atoi(text) : HANG; }

static void read_file(const char *path, int depth);

static void read_line(char *text, const char *path, int depth) {
    Line line = {0};
    char *at = text + strspn(text, " \t");
    at[strcspn(at, "\r\n")] = 0;
    if (!*at || *at == '#') return;
    if (!strncmp(at, "include ", 8)) {
        char other[PATH_MAX];
        const char *end = strrchr(path, '/');
        snprintf(other, sizeof other, "%.*s%s", end ? (int)(end - path + 1) : 0, path, at + 8);
        read_file(other, depth + 1);
        return;
    }
    char *copy = strdup(at), *rest = copy, *word;
    line.code = OK;
    while ((word = strsep(&rest, " "))) {
        if (!*word) continue;
        if (!strcmp(word, "=")) { line.value = rest ? rest : ""; break; }
        if (!strcmp(word, "!")) { line.value = ""; line.code = rest ? code_of(rest) : UNKNOWN; break; }
        if (!line.function) line.function = word;
        else if (line.count < ARGUMENTS) line.arguments[line.count++] = word;
    }
    if (!line.value) {
        fprintf(stderr, "played libnvidia-ml: %s: not a line: %s\n", path, text);
        abort();
    }
    if (n_lines == capacity) lines = realloc(lines, sizeof *lines * (capacity = capacity ? 2 * capacity : 1024));
    lines[n_lines++] = line; /* what an earlier reading had is not freed: tests are short */
}

static void read_file(const char *path, int depth) {
    FILE *file = depth < 8 ? fopen(path, "r") : NULL;
    char *text = NULL;
    size_t size = 0;
    if (!file) {
        fprintf(stderr, "played libnvidia-ml: %s cannot be read\n", path);
        abort();
    }
    while (getline(&text, &size, file) >= 0) read_line(text, path, depth);
    free(text);
    fclose(file);
}

static void refresh(void) {
    const char *path = getenv("UNIDLE_PLAYED_NVML");
    struct stat now;
    if (!path || stat(path, &now)) return; /* between two versions of it: what it said last */
    if (lines && now.st_ino == last.st_ino && now.st_size == last.st_size && now.st_mtim.tv_sec == last.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == last.st_mtim.tv_nsec) return;
    last = now;
    n_lines = 0;
    read_file(path, 0);
}

static int fits(const char *pattern, const char *given) {
    int from, to, end = 0, end2 = 0, number;
    if (!strcmp(pattern, "*") || !strcmp(pattern, given)) return 1;
    if (sscanf(pattern, "%d-%d%n", &from, &to, &end) != 2 || pattern[end]) return 0;
    return sscanf(given, "%d%n", &number, &end2) == 1 && !given[end2] && from <= number && number <= to;
}

static const Line *find(const char *function, char given[][24], int count) {
    for (int k = n_lines - 1; k >= 0; k--) {
        const Line *line = &lines[k];
        int any = !strcmp(line->function, "*"), same = any || !strcmp(line->function, function);
        if (!same || (any ? count < line->count : count != line->count)) continue;
        int a = 0;
        while (a < line->count && fits(line->arguments[a], given[a])) a++;
        if (a == line->count) return line;
    }
    return NULL;
}

/* The answer to a call: its code, and its values as text (of `size`, may be NULL). */
static int ask(char *value, size_t size, const char *function, const char *arguments, ...) {
    char given[ARGUMENTS][24];
    int count = 0, code;
    va_list more;
    va_start(more, arguments);
    for (const char *kind = arguments; *kind && count < ARGUMENTS; kind++, count++) {
        if (*kind == 'h') {
            const Handle *handle = va_arg(more, const Handle *);
            if (!handle) { va_end(more); return INVALID; }
            snprintf(given[count], 24, "%s", handle->name);
        } else snprintf(given[count], 24, "%u", va_arg(more, u32));
    }
    va_end(more);
    for (;;) {
        pthread_mutex_lock(&lock);
        refresh();
        const Line *line = find(function, given, count);
        code = !started && strcmp(function, "nvmlInit") ? UNINITIALIZED : line ? line->code : NOT_SUPPORTED;
        if (code == OK && value) snprintf(value, size, "%s", line->value);
        pthread_mutex_unlock(&lock);
        if (code != HANG) return code;
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
}

static void *handle_of(const char *name) {
    pthread_mutex_lock(&lock);
    int k = 0;
    while (k < n_handles && strcmp(handles[k].name, name)) k++;
    if (k == n_handles && n_handles < HANDLES) snprintf(handles[n_handles++].name, sizeof handles[0].name, "%s", name);
    pthread_mutex_unlock(&lock);
    return &handles[k];
}

static u64 now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Numbers of a text, separated by what is none; returns how many. */
static int numbers(const char *text, u64 *into, int most) {
    int n = 0;
    while (n < most) {
        char *end;
        while (*text && !strchr("0123456789-", *text)) text++;
        if (!*text) break;
        into[n] = *text == '-' ? (u64)strtoll(text, &end, 0) : strtoull(text, &end, 0);
        if (end == text) { text++; continue; }
        text = end;
        n++;
    }
    return n;
}

static int ask_text(char *into, u32 size, const char *value, int code) {
    if (code != OK) return code;
    if (!into) return INVALID;
    if (strlen(value) >= size) return TOO_SMALL;
    strcpy(into, value);
    return OK;
}

/* -- start, system, devices -------------------------------------------------------------------- */

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    char value[64];
    int code = ask(value, sizeof value, "nvmlInit", "");
    if (code == NOT_SUPPORTED) code = OK; /* no line: it starts */
    if (code == OK) __sync_fetch_and_add(&started, 1);
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    if (!started) return UNINITIALIZED;
    __sync_fetch_and_sub(&started, 1);
    return OK;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 25: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

#define TEXT_OF_SYSTEM(name) \
    int name(char *into, u32 size) { char v[128]; int code = ask(v, sizeof v, #name, ""); return ask_text(into, size, v, code); }
TEXT_OF_SYSTEM(nvmlSystemGetDriverVersion)
TEXT_OF_SYSTEM(nvmlSystemGetNVMLVersion)

static int many(const char *function, int code, const char *value, int count, ...) {
    u64 found[8] = {0};
    va_list more;
    if (code != OK) return code;
    if (numbers(value, found, 8) < count) {
        fprintf(stderr, "played libnvidia-ml: %s has %d values, not '%s'\n", function, count, value);
        abort();
    }
    va_start(more, count);
    for (int k = 0; k < count; k++) {
        u32 *into = va_arg(more, u32 *);
        if (!into) { va_end(more); return INVALID; }
        *into = (u32)found[k];
    }
    va_end(more);
    return OK;
}
/* A function of a device, and maybe of numbers, that answers with unsigned integers. */
#define NUMBERS(function, signature, kinds, given, count, ...) \
    int function signature { char v[128]; int code = ask(v, sizeof v, #function, kinds, given); \
                             return many(#function, code, v, count, __VA_ARGS__); }
#define NUMBER(function) NUMBERS(function, (Handle *d, u32 *a), "h", d, 1, a)
#define _2(a, b) a, b
#define _3(a, b, c) a, b, c

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    char v[64];
    int code = ask(v, sizeof v, "nvmlSystemGetCudaDriverVersion", "");
    return many("nvmlSystemGetCudaDriverVersion", code, v, 1, version);
}
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(u32 *count) {
    char v[64];
    int code = ask(v, sizeof v, "nvmlDeviceGetCount", "");
    return many("nvmlDeviceGetCount", code, v, 1, count);
}
int nvmlDeviceGetCount(u32 *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex_v2(u32 index, Handle **device) {
    u32 count;
    char name[24];
    int code = nvmlDeviceGetCount_v2(&count);
    if (code != OK) return code;
    if (!device || index >= count) return INVALID;
    code = ask(NULL, 0, "nvmlDeviceGetHandleByIndex", "u", index);
    snprintf(name, sizeof name, "%u", index);
    *device = handle_of(name);
    return code == NOT_SUPPORTED ? OK : code;
}
int nvmlDeviceGetHandleByIndex(u32 index, Handle **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

/* The device whose answer to `function` is `wanted`: of all GPUs, and of their MIG devices. */
static int by_answer(const char *function, const char *wanted, Handle **device) {
    u32 count;
    char v[128], word[64], name[40];
    int code = nvmlDeviceGetCount_v2(&count);
    if (code != OK) return code;
    for (u32 index = 0; index < count; index++)
        for (int mig = -1; mig < 7; mig++) {
            snprintf(name, sizeof name, mig < 0 ? "%u" : "%u.%d", index, mig);
            if (ask(v, sizeof v, function, "h", handle_of(name)) != OK || sscanf(v, "%63s", word) != 1) continue;
            if (strcasecmp(word, wanted)) continue;
            code = mig < 0 ? ask(NULL, 0, "nvmlDeviceGetHandleByIndex", "u", index) : OK;
            *device = handle_of(name);
            return code == NOT_SUPPORTED ? OK : code;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **device) {
    return uuid && device ? by_answer("nvmlDeviceGetUUID", uuid, device) : INVALID;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Handle **device) {
    return bus && device ? by_answer("nvmlDeviceGetPciInfo", bus, device) : INVALID;
}

#define TEXT(name) \
    int name(Handle *d, char *into, u32 size) { char v[128]; int code = ask(v, sizeof v, #name, "h", d); return ask_text(into, size, v, code); }
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)

typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
static int pci_of(const char *value, int code, Pci *pci) {
    if (code != OK) return code;
    if (!pci) return INVALID;
    memset(pci, 0, sizeof *pci);
    sscanf(value, "%31s %x %x", pci->bus_id, &pci->id, &pci->subsystem);
    sscanf(pci->bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%04x:%02x:%02x.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(Handle *d, Pci *pci) {
    char v[128];
    int code = ask(v, sizeof v, "nvmlDeviceGetPciInfo", "h", d);
    return pci_of(v, code, pci);
}
int nvmlDeviceGetPciInfo_v2(Handle *d, Pci *pci) { return nvmlDeviceGetPciInfo_v3(d, pci); }

typedef struct { u64 total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Handle *d, Memory *memory) {
    char v[128];
    u64 n[3] = {0};
    int code = ask(v, sizeof v, "nvmlDeviceGetMemoryInfo", "h", d);
    if (code != OK) return code;
    numbers(v, n, 3);
    *memory = (Memory){n[0], n[1], n[2]};
    return OK;
}
typedef struct { u32 version; u64 total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(Handle *d, Memory2 *memory) {
    Memory old;
    if (memory->version != (sizeof *memory | 2 << 24)) return VERSION_MISMATCH;
    int code = nvmlDeviceGetMemoryInfo(d, &old);
    if (code == OK) *memory = (Memory2){memory->version, old.total, old.total - old.free - old.used, old.free, old.used};
    return code;
}

NUMBER(nvmlDeviceGetPersistenceMode)
NUMBER(nvmlDeviceGetComputeMode)
NUMBER(nvmlDeviceGetPowerState)
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER(nvmlDeviceGetEnforcedPowerLimit)
NUMBER(nvmlDeviceGetPowerManagementLimit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetPcieReplayCounter)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus)
NUMBER(nvmlDeviceGetMaxMigDeviceCount)
NUMBER(nvmlDeviceGetGpuInstanceId)
NUMBERS(nvmlDeviceGetEccMode, (Handle *d, u32 *a, u32 *b), "h", d, 2, _2(a, b))
NUMBERS(nvmlDeviceGetMigMode, (Handle *d, u32 *a, u32 *b), "h", d, 2, _2(a, b))
NUMBERS(nvmlDeviceGetCudaComputeCapability, (Handle *d, u32 *a, u32 *b), "h", d, 2, _2(a, b))
NUMBERS(nvmlDeviceGetUtilizationRates, (Handle *d, u32 *both), "h", d, 2, _2(both, both + 1))
NUMBERS(nvmlDeviceGetTemperature, (Handle *d, u32 sensor, u32 *a), "hu", _2(d, sensor), 1, a)
NUMBERS(nvmlDeviceGetClockInfo, (Handle *d, u32 kind, u32 *a), "hu", _2(d, kind), 1, a)
NUMBERS(nvmlDeviceGetMaxClockInfo, (Handle *d, u32 kind, u32 *a), "hu", _2(d, kind), 1, a)
NUMBERS(nvmlDeviceGetApplicationsClock, (Handle *d, u32 kind, u32 *a), "hu", _2(d, kind), 1, a)
NUMBERS(nvmlDeviceGetNvLinkState, (Handle *d, u32 link, u32 *a), "hu", _2(d, link), 1, a)
NUMBERS(nvmlDeviceGetTopologyCommonAncestor, (Handle *d, Handle *e, u32 *a), "hh", _2(d, e), 1, a)
#ifndef OLD_DRIVER
NUMBERS(nvmlDeviceGetRemappedRows, (Handle *d, u32 *a, u32 *b, u32 *c, u32 *e), "h", d, 4, _2(_2(a, b), _2(c, e)))
NUMBERS(nvmlDeviceGetNvLinkRemoteDeviceType, (Handle *d, u32 link, u32 *a), "hu", _2(d, link), 1, a)
#endif

static int ask_u64(u64 *into, int code, const char *value) {
    if (code != OK) return code;
    if (!into) return INVALID;
    *into = strtoull(value, NULL, 0);
    return OK;
}
#define WIDE(function, answers, signature, kinds, ...) \
    int function signature { char v[64]; int code = ask(v, sizeof v, answers, kinds, __VA_ARGS__); return ask_u64(a, code, v); }
#define REASONS "nvmlDeviceGetCurrentClocksEventReasons"
#ifndef OLD_DRIVER
WIDE(nvmlDeviceGetCurrentClocksEventReasons, REASONS, (Handle *d, u64 *a), "h", d)
#endif
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons, REASONS, (Handle *d, u64 *a), "h", d)
WIDE(nvmlDeviceGetTotalEccErrors, "nvmlDeviceGetTotalEccErrors", (Handle *d, u32 k, u32 c, u64 *a), "huu", d, k, c)
WIDE(nvmlDeviceGetMemoryErrorCounter, "nvmlDeviceGetMemoryErrorCounter", (Handle *d, u32 k, u32 c, u32 w, u64 *a), "huuu", d, k, c, w)
WIDE(nvmlDeviceGetNvLinkErrorCounter, "nvmlDeviceGetNvLinkErrorCounter", (Handle *d, u32 l, u32 k, u64 *a), "huu", d, l, k)

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle *d, u32 link, Pci *pci) {
    char v[128];
    int code = ask(v, sizeof v, "nvmlDeviceGetNvLinkRemotePciInfo", "hu", d, link);
    return pci_of(v, code, pci);
}

#ifndef OLD_DRIVER
typedef struct { unsigned char cluster[16]; int status; u32 clique; unsigned char state; } Fabric;
int nvmlDeviceGetGpuFabricInfo(Handle *d, Fabric *fabric) {
    char v[64];
    u64 n[2] = {0};
    int code = ask(v, sizeof v, "nvmlDeviceGetGpuFabricInfo", "h", d);
    if (code != OK) return code;
    numbers(v, n, 2);
    memset(fabric, 0, sizeof *fabric);
    fabric->state = (unsigned char)n[0];
    fabric->status = (int)n[1];
    return OK;
}

typedef struct { u32 version; u64 counts[6], buckets[5]; u32 exceeded; } Sram;
int nvmlDeviceGetSramEccErrorStatus(Handle *d, Sram *sram) {
    char v[128];
    if (sram->version != (sizeof *sram | 1 << 24)) return VERSION_MISMATCH;
    int code = ask(v, sizeof v, "nvmlDeviceGetSramEccErrorStatus", "h", d);
    if (code == OK) numbers(v, sram->counts, 6);
    return code;
}
#endif

int nvmlDeviceGetRetiredPages(Handle *d, u32 cause, u32 *count, u64 *addresses) {
    char v[2048];
    u64 pages[128];
    int code = ask(v, sizeof v, "nvmlDeviceGetRetiredPages", "hu", d, cause);
    if (code != OK) return code;
    u32 n = (u32)numbers(v, pages, 128), room = *count;
    *count = n;
    if (n > room) return TOO_SMALL;
    if (n && !addresses) return INVALID;
    if (n) memcpy(addresses, pages, n * sizeof *pages);
    return OK;
}

typedef union { double d; u32 u; unsigned long ul; u64 ull; long long sll; } Value;
typedef struct { u32 field, scope; long long timestamp, latency; u32 type; int code; Value value; } Field;
int nvmlDeviceGetFieldValues(Handle *d, int count, Field *fields) {
    for (int k = 0; k < count; k++) {
        char v[64];
        u64 n[2] = {0};
        fields[k].code = ask(v, sizeof v, "nvmlDeviceGetFieldValues", "huu", d, fields[k].field, fields[k].scope);
        if (fields[k].code == 15 || fields[k].code == UNINITIALIZED) return fields[k].code;
        if (fields[k].code == OK) numbers(v, n, 2);
        fields[k].type = (u32)n[0];
        fields[k].timestamp = (long long)now_us();
        if (n[0] == 1) fields[k].value.u = (u32)n[1];
        else fields[k].value.ull = n[1];
    }
    return OK;
}

/* -- who is on it, and how busy it is ---------------------------------------------------------- */

#ifndef OLD_DRIVER
typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } Process;
/* Values: PID:BYTES[:INSTANCE:COMPUTE] each; BYTES -1 where the driver does not tell them. */
static int processes(const char *function, Handle *d, u32 *count, Process *into) {
    char v[4096], *rest = v, *word;
    int code = ask(v, sizeof v, function, "h", d);
    u32 n = 0, room;
    if (code != OK) return code;
    if (!count) return INVALID;
    room = *count;
    for (const char *at = v; *at; at++) n += *at != ' ' && (at == v || at[-1] == ' ');
    *count = n;
    if (!n) return OK;
    if (n > room || !into) return TOO_SMALL;
    for (n = 0; (word = strsep(&rest, " "));) {
        if (!*word) continue;
        Process one = {0, 0, UINT_MAX, UINT_MAX};
        long long bytes = 0;
        sscanf(word, "%u:%lld:%u:%u", &one.pid, &bytes, &one.gpu_instance, &one.compute_instance);
        one.memory = (u64)bytes;
        into[n++] = one;
    }
    return OK;
}
#define PROCESSES(function) int function##_v3(Handle *d, u32 *count, Process *p) { return processes(#function, d, count, p); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
#endif

typedef struct { u64 time; Value value; } Sample;
int nvmlDeviceGetSamples(Handle *d, u32 kind, u64 since, u32 *type, u32 *count, Sample *into) {
    char v[1024];
    u64 percent[120], now = now_us();
    int code = ask(v, sizeof v, "nvmlDeviceGetSamples", "hu", d, kind);
    if (code != OK) return code;
    int n = numbers(v, percent, 120), given = 0;
    *type = 1;
    if (!into) { *count = 120; return OK; } /* the size of its buffer */
    for (int k = 0; k < n && given < (int)*count; k++) {
        u64 time = now - (u64)(n - 1 - k) * 166667;
        if (time > since) into[given++] = (Sample){time, {.u = (u32)percent[k]}};
    }
    *count = (u32)given;
    return given ? OK : NOT_FOUND;
}

typedef struct { u32 pid; u64 time; u32 sm, memory, encoder, decoder; } ProcessUse;
int nvmlDeviceGetProcessUtilization(Handle *d, ProcessUse *into, u32 *count, u64 since) {
    char v[1024];
    u64 n[128];
    int code = ask(v, sizeof v, "nvmlDeviceGetProcessUtilization", "h", d);
    (void)since;
    if (code != OK) return code;
    u32 pairs = (u32)numbers(v, n, 128) / 2, room = *count;
    *count = pairs;
    if (!into || room < pairs) return pairs ? TOO_SMALL : NOT_FOUND;
    for (u32 k = 0; k < pairs; k++) into[k] = (ProcessUse){(u32)n[2 * k], now_us(), (u32)n[2 * k + 1], 0, 0, 0};
    return pairs ? OK : NOT_FOUND;
}

/* -- events ------------------------------------------------------------------------------------ */

int nvmlEventSetCreate(EventSet **set) {
    int code = ask(NULL, 0, "nvmlEventSetCreate", "");
    if (code != OK && code != NOT_SUPPORTED) return code;
    *set = calloc(1, sizeof **set);
    return OK;
}
int nvmlEventSetFree(EventSet *set) { free(set); return OK; }
int nvmlDeviceRegisterEvents(Handle *d, u64 types, EventSet *set) {
    int code = ask(NULL, 0, "nvmlDeviceRegisterEvents", "h", d);
    if (code != OK && code != NOT_SUPPORTED) return code;
    if (!set || strchr(d->name, '.') || atoi(d->name) >= GPUS) return INVALID;
    set->registered[atoi(d->name)] |= (u32)types;
    return OK;
}

typedef struct { Handle *device; u64 type, data; u32 gpu_instance, compute_instance; } Event;
static int next_event(EventSet *set, Event *event) {
    char name[24] = "";
    pthread_mutex_lock(&lock);
    refresh();
    for (int k = 0; k < n_lines && !*name; k++) {
        u64 n[2] = {0};
        Line *line = &lines[k];
        if (strcmp(line->function, "event") || line->count < 2 || atoi(line->arguments[0]) <= delivered) continue;
        int gpu = atoi(line->arguments[1]);
        numbers(line->value, n, 2);
        delivered = atoi(line->arguments[0]);
        if (gpu >= GPUS || !(set->registered[gpu] & n[0])) continue;
        snprintf(name, sizeof name, "%d", gpu);
        *event = (Event){NULL, n[0], n[1], UINT_MAX, UINT_MAX};
    }
    pthread_mutex_unlock(&lock);
    if (*name) event->device = handle_of(name);
    return *name != 0;
}
int nvmlEventSetWait_v2(EventSet *set, Event *event, u32 timeout_ms) {
    int code = ask(NULL, 0, "nvmlEventSetWait", "");
    if (code != OK && code != NOT_SUPPORTED) return code;
    if (!set || !event) return INVALID;
    for (u64 until = now_us() + (u64)timeout_ms * 1000;;) {
        if (next_event(set, event)) return OK;
        if (now_us() >= until) return TIMEOUT;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

/* -- MIG: what is there; nothing can be changed ------------------------------------------------- */

typedef struct { u32 version, id, p2p, slices, instances, sms, copy, dec, enc, jpeg, ofa; u64 memory_mb; char name[96]; } Profile;
/* Values: ID SLICES INSTANCES MEMORY_MB, by NVML's number of the profile. */
int nvmlDeviceGetGpuInstanceProfileInfoV(Handle *d, u32 profile, Profile *info) {
    char v[128];
    u64 n[4] = {0};
    if (info->version != 0x02000098) return VERSION_MISMATCH;
    int code = ask(v, sizeof v, "nvmlDeviceGetGpuInstanceProfileInfo", "hu", d, profile);
    if (code != OK) return code;
    numbers(v, n, 4);
    info->id = (u32)n[0], info->slices = (u32)n[1], info->instances = (u32)n[2], info->memory_mb = n[3];
    return OK;
}
typedef struct { u32 start, size; } Place;
/* Values: SIZE START START..., by the profile's id. */
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Handle *d, u32 id, Place *into, u32 *count) {
    char v[256];
    u64 n[32] = {0};
    int code = ask(v, sizeof v, "nvmlDeviceGetGpuInstancePossiblePlacements", "hu", d, id);
    if (code != OK) return code;
    u32 places = (u32)numbers(v, n, 32), room = *count;
    places = places ? places - 1 : 0;
    *count = places;
    if (!into) return OK;
    if (room < places) return TOO_SMALL;
    for (u32 k = 0; k < places; k++) into[k] = (Place){(u32)n[k + 1], (u32)n[0]};
    return OK;
}
/* Values: the numbers of the instances of a profile's id. */
int nvmlDeviceGetGpuInstances(Handle *d, u32 id, Handle **into, u32 *count) {
    char v[128], name[64];
    u64 n[16];
    int code = ask(v, sizeof v, "nvmlDeviceGetGpuInstances", "hu", d, id);
    if (code != OK) return code;
    u32 found = (u32)numbers(v, n, 16), room = *count;
    *count = found;
    if (room < found) return TOO_SMALL;
    for (u32 k = 0; k < found; k++) {
        snprintf(name, sizeof name, "%.16s/%llu", d->name, n[k]);
        into[k] = handle_of(name);
    }
    return OK;
}
typedef struct { Handle *device; u32 id, profile; Place place; } Instance;
/* Values: PROFILE_ID START SIZE. */
int nvmlGpuInstanceGetInfo(Handle *instance, Instance *info) {
    char v[128], name[24];
    u64 n[3] = {0};
    int code = ask(v, sizeof v, "nvmlGpuInstanceGetInfo", "h", instance);
    if (code != OK) return code;
    numbers(v, n, 3);
    snprintf(name, sizeof name, "%s", instance->name);
    name[strcspn(name, "/")] = 0;
    *info = (Instance){handle_of(name), (u32)atoi(strchr(instance->name, '/') + 1), (u32)n[0], {(u32)n[1], (u32)n[2]}};
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Handle *d, u32 index, Handle **mig) {
    char name[64], v[64];
    if (!d || !mig) return INVALID;
    snprintf(name, sizeof name, "%.16s.%u", d->name, index);
    Handle *found = handle_of(name);
    int code = ask(v, sizeof v, "nvmlDeviceGetGpuInstanceId", "h", found); /* a MIG device has one */
    if (code == OK) *mig = found;
    return code == NOT_SUPPORTED ? NOT_FOUND : code;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(Handle *d, u32 id, const Place *place, Handle **made) {
    (void)place, (void)made;
    return ask(NULL, 0, "nvmlDeviceCreateGpuInstanceWithPlacement", "hu", d, id);
}
