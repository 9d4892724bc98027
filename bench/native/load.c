/* A load generator: sends one frame over and over, keeps DEPTH requests in flight per connection.
 *
 *   load PORT CONNECTIONS DEPTH REQUESTS FRAME_FILE
 *
 * FRAME_FILE holds a whole request with its length prefix. Prints one line of JSON: requests, bytes sent and received,
 * wall and own CPU seconds, latency p50 and p99 in µs. Exit 3: a connection was closed. Exit 2: no answer for 60 s.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVE = 1 << 20, EVENTS = 256, STALL_S = 60 };

struct connection {
    int fd, prefix_filled, wants_write;
    long sent, done;
    size_t partly_sent, reply_left;
    unsigned char prefix[4];
    double *sent_at;
};

static char *frame, *replies;
static size_t frame_size;
static long wanted, issued, finished;
static double bytes_out, bytes_in;
static float *latencies;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void finish_one(struct connection *c, int depth) {
    latencies[finished++] = (float)((now() - c->sent_at[c->done % depth]) * 1e6);
    c->done++;
}

static void receive(struct connection *c, int depth) {
    ssize_t got = recv(c->fd, replies, RECEIVE, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        fprintf(stderr, "connection closed\n");
        exit(3);
    }
    bytes_in += (double)got;
    for (size_t at = 0; at < (size_t)got;) {
        if (c->reply_left > 0) {
            size_t take = c->reply_left < (size_t)got - at ? c->reply_left : (size_t)got - at;
            c->reply_left -= take;
            at += take;
            if (c->reply_left == 0) finish_one(c, depth);
            continue;
        }
        c->prefix[c->prefix_filled++] = (unsigned char)replies[at++];
        if (c->prefix_filled == 4) {
            c->prefix_filled = 0;
            c->reply_left = ((size_t)c->prefix[0] << 24) | ((size_t)c->prefix[1] << 16) | ((size_t)c->prefix[2] << 8) | c->prefix[3];
        }
    }
}

/* Sends until the window is full (returns 0) or the socket is (returns 1). */
static int transmit(struct connection *c, int depth) {
    while (c->partly_sent > 0 || (c->sent - c->done < depth && issued < wanted)) {
        double at = now();
        ssize_t took = send(c->fd, frame + c->partly_sent, frame_size - c->partly_sent, 0);
        if (took < 0) return 1;
        bytes_out += (double)took;
        if (c->partly_sent == 0) {
            c->sent_at[c->sent % depth] = at;
            c->sent++;
            issued++;
        }
        c->partly_sent += (size_t)took;
        if (c->partly_sent < frame_size) return 1;
        c->partly_sent = 0;
    }
    return 0;
}

static int dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror("connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void report(double wall) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec
               + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    qsort(latencies, (size_t)finished, sizeof *latencies, by_value);
    printf("{\"requests\": %ld, \"out\": %.0f, \"in\": %.0f, \"wall\": %.4f, \"cpu\": %.4f, \"p50\": %.0f, \"p99\": %.0f}\n",
           finished, bytes_out, bytes_in, wall, cpu, latencies[finished / 2], latencies[finished * 99 / 100]);
}

int main(int count, char **arguments) {
    if (count < 6) return 2;
    int port = atoi(arguments[1]), connections = atoi(arguments[2]), depth = atoi(arguments[3]);
    wanted = atol(arguments[4]);
    FILE *file = fopen(arguments[5], "rb");
    if (file == NULL) return 1;
    fseek(file, 0, SEEK_END);
    frame_size = (size_t)ftell(file);
    rewind(file);
    frame = malloc(frame_size);
    if (fread(frame, 1, frame_size, file) != frame_size) return 1;
    replies = malloc(RECEIVE);
    latencies = malloc(sizeof *latencies * (size_t)(wanted + 1));
    struct connection *all = calloc((size_t)connections, sizeof *all);
    int epoll = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        all[i].fd = dial(port);
        all[i].sent_at = malloc(sizeof(double) * (size_t)depth);
        all[i].wants_write = 1;
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u32 = (unsigned)i};
        epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    double start = now(), last = start;
    struct epoll_event events[EVENTS];
    while (finished < wanted) {
        int ready = epoll_wait(epoll, events, EVENTS, 1000);
        if (ready > 0) last = now();
        if (now() - last > STALL_S) return 2;
        for (int k = 0; k < ready; k++) {
            struct connection *c = &all[events[k].data.u32];
            if (events[k].events & (EPOLLIN | EPOLLHUP)) receive(c, depth);
            int full = transmit(c, depth);
            if (full != c->wants_write) {
                c->wants_write = full;
                struct epoll_event event = {.events = EPOLLIN | (full ? EPOLLOUT : 0), .data.u32 = events[k].data.u32};
                epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
            }
        }
    }
    report(now() - start);
    return 0;
}
