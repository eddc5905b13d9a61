/* Shifts the wall clock that a process and its children see, by the int64 of nanoseconds in the file WALL_CLOCK_FILE.

   Loaded with LD_PRELOAD. The offset may change while they run: that is a clock that steps. No other clock is touched: a
   step of the wall clock changes neither CLOCK_MONOTONIC nor CLOCK_BOOTTIME on a real host either. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t offset_ns(void) {
  static volatile int64_t *shared;
  if (!shared) {
    static volatile int64_t none;
    const char *path = getenv("WALL_CLOCK_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    shared = at == MAP_FAILED ? &none : at;
  }
  return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t t = now->tv_sec * 1000000000LL + now->tv_nsec + offset_ns();
    now->tv_sec = t / 1000000000LL;
    now->tv_nsec = t % 1000000000LL;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec t;
  int failed = clock_gettime(CLOCK_REALTIME, &t);
  now->tv_sec = t.tv_sec;
  now->tv_usec = t.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *into) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (into) *into = t.tv_sec;
  return t.tv_sec;
}
