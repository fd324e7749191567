/* Loaded before the C library into the router of a scenario: names that end in .hang.test keep their lookup busy for
 * 9 s and are not found then, those that end in .ok.test are this machine. Everything that resolves names in a process
 * comes through here, whichever event loop or library it uses. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

static int ends_with(const char *name, const char *end) {
    size_t length = strlen(name), wanted = strlen(end);
    return length >= wanted && strcmp(name + length - wanted, end) == 0;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        dlsym(RTLD_NEXT, "getaddrinfo");
    if (node != NULL && ends_with(node, ".hang.test")) {
        sleep(9);
        return EAI_AGAIN;
    }
    return real(node != NULL && ends_with(node, ".ok.test") ? "127.0.0.1" : node, service, hints, found);
}
