/* The floor under any fetch: answers each length-prefixed frame with a header and BYTES of FILE by sendfile.
 * No protocol, no look-up: what the kernel alone costs.
 *
 *   sendfloor PORT FILE BYTES        prints "ready" when it listens
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONNECTIONS = 4096, EVENTS = 256, BUFFER = 65536, HEADER = 64 };

struct connection {
    unsigned char bytes[BUFFER];
    size_t filled, owed;
    off_t at;
    int writing;
};

static struct connection *connections[CONNECTIONS];
static int file, epoll;
static off_t file_size;
static size_t answer;
static unsigned char header[4 + HEADER];

static void want(int fd, int writing) {
    struct connection *c = connections[fd];
    if (c->writing == writing) return;
    c->writing = writing;
    struct epoll_event event = {.events = writing ? EPOLLOUT : EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

/* Sends what is owed; 0 when the socket is full. */
static int transmit(int fd) {
    struct connection *c = connections[fd];
    while (c->owed > 0) {
        ssize_t sent = sendfile(fd, file, &c->at, c->owed);
        if (sent < 0 && errno == EAGAIN) return 0;
        if (sent <= 0) _exit(4);
        c->owed -= (size_t)sent;
    }
    return 1;
}

static void accept_one(int listener) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0 || fd >= CONNECTIONS) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connections[fd] == NULL) connections[fd] = malloc(sizeof *connections[fd]);
    struct connection *c = connections[fd];
    c->filled = c->owed = 0;
    c->at = 0;
    c->writing = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static void serve(int fd) {
    struct connection *c = connections[fd];
    if (c->owed == 0) {
        ssize_t got = recv(fd, c->bytes + c->filled, BUFFER - c->filled, 0);
        if (got <= 0) {
            if (got == 0) close(fd);
            return;
        }
        c->filled += (size_t)got;
    }
    for (;;) {
        if (!transmit(fd)) {
            want(fd, 1);
            return;
        }
        if (c->filled < 4) break;
        size_t size = ((size_t)c->bytes[2] << 8 | c->bytes[3]) + 4;
        if (c->filled < size) break;
        c->filled -= size;
        for (size_t i = 0; i < c->filled; i++) c->bytes[i] = c->bytes[i + size];
        if (send(fd, header, sizeof header, MSG_MORE) < 0) _exit(5);
        if (c->at + (off_t)answer > file_size) c->at = 0;
        c->owed = answer;
    }
    want(fd, 0);
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    file = open(arguments[2], O_RDONLY);
    struct stat state;
    if (file < 0 || fstat(file, &state) != 0) return 1;
    file_size = state.st_size;
    answer = (size_t)atol(arguments[3]);
    size_t body = HEADER + answer;
    for (int i = 0; i < 4; i++) header[i] = (unsigned char)(body >> (24 - 8 * i));
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
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd == listener) accept_one(listener);
            else serve(events[i].data.fd);
        }
    }
}
