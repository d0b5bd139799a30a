/* This library is preloaded into a server, so that the wall clock of this server alone can be moved.
   The file `clock` in the server's working directory contains the offset from the true time, and may
   change while the server runs. Monotonic clocks do not change. (libfaketime hangs redis-server.) */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The content of `clock`, as server_clock.rs writes it. `version` is odd while the other fields change. */
struct shift {
  volatile int64_t version, ahead_ns, ppm, since_boot_ns;
};

static int64_t read_ns(clockid_t clock) {
  struct timespec time;
  syscall(SYS_clock_gettime, clock, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int64_t ahead_ns(void) {
  static const struct shift *volatile shift;
  if (!shift) {
    int file = open("clock", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    void *map = mmap(0, sizeof(struct shift), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map == MAP_FAILED) return 0;
    shift = map;
  }
  /* If the writer is killed during a change, `version` stays odd, and any value is good enough. */
  for (int tries = 0;; tries++) {
    int64_t version = shift->version;
    __sync_synchronize();
    int64_t ahead = shift->ahead_ns, ppm = shift->ppm, since = shift->since_boot_ns;
    __sync_synchronize();
    if ((version % 2 == 0 && shift->version == version) || tries > 100000)
      return ahead + (ppm ? (read_ns(CLOCK_BOOTTIME) - since) / 1000000.0 * ppm : 0);
  }
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  long result = syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t ns = time->tv_sec * 1000000000LL + time->tv_nsec + ahead_ns();
    time->tv_sec = ns / 1000000000LL;
    time->tv_nsec = ns % 1000000000LL;
  }
  return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  int64_t ns = read_ns(CLOCK_REALTIME) + ahead_ns();
  time->tv_sec = ns / 1000000000LL;
  time->tv_usec = ns % 1000000000LL / 1000;
  return 0;
}

time_t time(time_t *result) {
  time_t now = (read_ns(CLOCK_REALTIME) + ahead_ns()) / 1000000000LL;
  if (result) *result = now;
  return now;
}
