/* Preloaded into a process to shift its wall clock, and no other clock. The shift in microseconds is the content of the
 * file CLOCK_FILE, and may change at any time. libfaketime does the same, but deadlocks redis-server. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shift;

__attribute__((constructor)) static void open_shift(void) {
    const char *name = getenv("CLOCK_FILE");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) shift = page;
}

int clock_gettime(clockid_t id, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, id, time);
    if (result || !shift || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return result;
    long long nanos = time->tv_nsec + *shift % 1000000 * 1000;
    time->tv_sec += *shift / 1000000 + (nanos >= 1000000000) - (nanos < 0);
    time->tv_nsec = (nanos + 1000000000) % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
