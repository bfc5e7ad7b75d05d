/* Lets a server that listens on all addresses, and knows no setting for it, listen on 127.0.0.1 only: preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int socket, const struct sockaddr *address, socklen_t length) {
  int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
  struct sockaddr_in local;
  if (address->sa_family == AF_INET && length == sizeof local) {
    memcpy(&local, address, sizeof local);
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address = (const struct sockaddr *)&local;
  }
  return next(socket, address, length);
}
