/* Run a batch of calls (see foreign.py) without any library: from standard input to output.
 * It writes kernels.h, the header of the target's kernels, and calls.h: call(), and the counts of
 * each kernel's scalars and arrays. */
#include "kernels.h"

#include "calls.h"

enum { ROOM = 1 << 26 };

typedef long word;

#if defined(__aarch64__)
static word syscall3(word number, word a, word b, word c) {
  register word x8 __asm__("x8") = number;
  register word x0 __asm__("x0") = a;
  register word x1 __asm__("x1") = b;
  register word x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}
enum { READ = 63, WRITE = 64, EXIT = 93 };
#elif defined(__arm__)
static word syscall3(word number, word a, word b, word c) {
  register word r7 __asm__("r7") = number;
  register word r0 __asm__("r0") = a;
  register word r1 __asm__("r1") = b;
  register word r2 __asm__("r2") = c;
  __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
  return r0;
}
enum { READ = 3, WRITE = 4, EXIT = 1 };
#else
static word syscall3(word number, word a, word b, word c) {
  word result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                   : "rcx", "r11", "memory");
  return result;
}
enum { READ = 0, WRITE = 1, EXIT = 60 };
#endif

static char room[ROOM] __attribute__((aligned(64)));

#if defined(__x86_64__)
__attribute__((force_align_arg_pointer))
#endif
void _start(void) {
  word size = 0, done = 0, n;
  while ((n = syscall3(READ, 0, (word)(room + size), ROOM - size)) > 0) size += n;
#if defined(__x86_64__)
  *(int64_t *)room = kellet_level();
#endif
  for (char *at = room + 8; at < room + size;) {
    int64_t kernel = *(int64_t *)at, length = *(int64_t *)(at + 8);
    char *scalars = at + 16, *result = scalars + 8 * counts[kernel][0], *arrays[16];
    at = result + 8;
    for (int i = 0; i < counts[kernel][1]; i++) {
      arrays[i] = at + 8;
      at += 8 + (*(int64_t *)at + 7) / 8 * 8;
    }
    call(kernel, length, scalars, arrays, result);
  }
  while (done < size && (n = syscall3(WRITE, 1, (word)(room + done), size - done)) > 0) done += n;
  syscall3(EXIT, done != size, 0, 0);
  for (;;) {}
}
