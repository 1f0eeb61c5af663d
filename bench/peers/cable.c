/* Joins two network namespaces by a cable in user space, with a speed and a delay each way, for
 * kernels without netem. Its ends are TAP devices of one name and exist while the program runs.
 *
 *   cable DEVICE NAMESPACE_A NAMESPACE_B MBIT_PER_S DELAY_US
 *
 * The program prints "ready" once the devices exist. Packets come as the kernel has them, up to
 * 64 KB long and without checksums, as on a NIC with segmentation offload. A packet leaves at the
 * cable's speed after all earlier packets, and arrives after the delay. A queue holds packets for
 * 20 ms of the cable's time; further packets are lost, as at a switch. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { kMostBytes = 66 * 1024, kPackets = 4096 };
static const int64_t kQueueNs = 20 * 1000 * 1000;

struct Packet {
  int64_t due_ns;
  size_t bytes;
  char* data;
};

/* One direction: packets in the order in which they arrive at its end. */
struct Way {
  int from;
  int to;
  uint64_t first;
  uint64_t last;
  int64_t sent_ns; /* The last packet has left by then. */
  struct Packet packets[kPackets];
};

static struct Way ways[2];
static double ns_per_byte;
static int64_t delay_ns;

static void Fail(const char* what) {
  fprintf(stderr, "cable: %s: %s\n", what, strerror(errno));
  exit(1);
}

static int64_t Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Makes a device in a namespace and returns its descriptor, which works from any namespace. */
static int Open(const char* device, const char* namespace) {
  char path[256];
  snprintf(path, sizeof(path), "/var/run/netns/%s", namespace);
  const int there = open(path, O_RDONLY | O_CLOEXEC);
  if (there < 0 || setns(there, CLONE_NEWNET) != 0) Fail(path);
  close(there);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) Fail("/dev/net/tun");
  struct ifreq wish = {0};
  snprintf(wish.ifr_name, sizeof(wish.ifr_name), "%s", device);
  wish.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(fd, TUNSETIFF, &wish) != 0) Fail("TUNSETIFF");
  if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) != 0) Fail("TUNSETOFFLOAD");
  return fd;
}

/* Takes packets from the kernel until the kernel has no more. */
static void Take(struct Way* way) {
  static char data[kMostBytes];
  for (;;) {
    const ssize_t got = read(way->from, data, sizeof(data));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0) Fail("read");
    const int64_t now = Now();
    if (way->sent_ns < now) way->sent_ns = now;
    const int full = way->last - way->first == kPackets || way->sent_ns - now > kQueueNs;
    if (full) continue;
    way->sent_ns += (int64_t)((double)got * ns_per_byte);
    struct Packet* const packet = &way->packets[way->last++ % kPackets];
    packet->data = malloc((size_t)got);
    if (!packet->data) Fail("malloc");
    memcpy(packet->data, data, (size_t)got);
    packet->bytes = (size_t)got;
    packet->due_ns = way->sent_ns + delay_ns;
  }
}

/* Hands over all due packets. Returns the time of the next packet, or 0 without packets. */
static int64_t Deliver(struct Way* way) {
  while (way->first != way->last) {
    struct Packet* const packet = &way->packets[way->first % kPackets];
    if (packet->due_ns > Now()) return packet->due_ns;
    const ssize_t written = write(way->to, packet->data, packet->bytes);
    if (written < 0 && errno != EAGAIN && errno != EIO) Fail("write");
    free(packet->data);
    ++way->first;
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: cable DEVICE NAMESPACE_A NAMESPACE_B MBIT_PER_S DELAY_US\n");
    return 2;
  }
  const int a = Open(argv[1], argv[2]);
  const int b = Open(argv[1], argv[3]);
  ways[0].from = ways[1].to = a;
  ways[0].to = ways[1].from = b;
  ns_per_byte = 8000.0 / atof(argv[4]);
  delay_ns = atoll(argv[5]) * 1000;
  const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (timer < 0) Fail("timerfd_create");
  puts("ready");
  fflush(stdout);
  for (;;) {
    int64_t next_ns = 0;
    for (int i = 0; i < 2; ++i) {
      Take(&ways[i]);
      const int64_t due_ns = Deliver(&ways[i]);
      if (due_ns != 0 && (next_ns == 0 || due_ns < next_ns)) next_ns = due_ns;
    }
    const struct itimerspec at = {.it_value = {next_ns / 1000000000, next_ns % 1000000000}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL) != 0) Fail("timerfd_settime");
    struct pollfd entries[] = {{a, POLLIN, 0}, {b, POLLIN, 0}, {timer, POLLIN, 0}};
    if (poll(entries, 3, -1) < 0 && errno != EINTR) Fail("poll");
  }
}
