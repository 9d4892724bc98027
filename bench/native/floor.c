/* The floor under any broker: receives length-prefixed frames, optionally appends each to a file, answers each with the
 * same reply. No protocol, no checks: what the kernel alone costs.
 *
 *   floor PORT REPLY_BYTES [FILE]        prints "ready" when it listens; SIGUSR1 truncates FILE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 4096, EVENTS = 256, FIRST_BUFFER = 65536 };

struct connection {
    unsigned char *bytes;
    size_t capacity, filled;
};

static struct connection connections[CONNECTIONS];
static int log_file = -1;

static void on_truncate(int signal_number) {
    (void)signal_number;
    if (log_file >= 0 && ftruncate(log_file, 0) != 0) _exit(3);
}

static size_t frame_size(const unsigned char *p) {
    return ((size_t)p[0] << 24) | ((size_t)p[1] << 16) | ((size_t)p[2] << 8) | p[3];
}

static void accept_one(int listener, int epoll) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0 || fd >= CONNECTIONS) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct connection *c = &connections[fd];
    if (c->bytes == NULL) {
        c->capacity = FIRST_BUFFER;
        c->bytes = malloc(c->capacity);
    }
    c->filled = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static void serve(int fd, const unsigned char *replies, size_t reply_size) {
    struct connection *c = &connections[fd];
    ssize_t got = recv(fd, c->bytes + c->filled, c->capacity - c->filled, 0);
    if (got <= 0) {
        if (got == 0) close(fd);
        return;
    }
    c->filled += (size_t)got;
    size_t at = 0, frames = 0;
    while (c->filled - at >= 4) {
        size_t size = frame_size(c->bytes + at);
        if (size + 4 > c->capacity) {
            c->capacity = size + FIRST_BUFFER;
            c->bytes = realloc(c->bytes, c->capacity);
        }
        if (c->filled - at - 4 < size) break;
        if (log_file >= 0 && write(log_file, c->bytes + at + 4, size) < 0) _exit(4);
        at += 4 + size;
        frames++;
    }
    if (at > 0) {
        memmove(c->bytes, c->bytes + at, c->filled - at);
        c->filled -= at;
    }
    if (frames > 0 && send(fd, replies, reply_size * frames, 0) < 0) close(fd);
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    size_t reply_size = (size_t)atoi(arguments[2]);
    if (count > 3) log_file = open(arguments[3], O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
    signal(SIGUSR1, on_truncate);
    signal(SIGPIPE, SIG_IGN);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0) {
        perror("bind");
        return 1;
    }
    listen(listener, 512);
    unsigned char *replies = calloc(CONNECTIONS, reply_size);
    for (size_t i = 0; i < CONNECTIONS; i++) {
        size_t body = reply_size - 4;
        unsigned char *p = replies + i * reply_size;
        p[0] = (unsigned char)(body >> 24);
        p[1] = (unsigned char)(body >> 16);
        p[2] = (unsigned char)(body >> 8);
        p[3] = (unsigned char)body;
    }
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd == listener) accept_one(listener, epoll);
            else serve(events[i].data.fd, replies, reply_size);
        }
    }
}
