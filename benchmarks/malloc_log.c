/* Keeps count of the bytes that malloc has handed out, loaded by LD_PRELOAD.
 *
 * TensorFlow's CPU allocator has no counter that Python can read, but without
 * oneDNN every tensor is one malloc. `log_start` notes what is alive, then the
 * highest amount and, for a picture, each change of the amount follow.
 *
 *     cc -O2 -shared -fPIC -o malloc_log.so malloc_log.c
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

#define EVENTS (1 << 20)
#define SMALL 1024 /* changes below this are counted but not listed */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static atomic_long total, highest, base, used;
static atomic_int listing;
static long events[EVENTS];

static void change(long bytes) {
  long now = atomic_fetch_add(&total, bytes) + bytes;
  if (!atomic_load(&listing)) return;
  long seen = atomic_load(&highest);
  while (now > seen && !atomic_compare_exchange_weak(&highest, &seen, now));
  if (bytes >= SMALL || bytes <= -SMALL) {
    long k = atomic_fetch_add(&used, 1);
    if (k < EVENTS) events[k] = now - atomic_load(&base);
  }
}

static long size_of(void *p) { return p ? (long)malloc_usable_size(p) : 0; }

static void *counted(void *p) {
  if (p) change(size_of(p));
  return p;
}

void *malloc(size_t n) { return counted(__libc_malloc(n)); }
void *calloc(size_t k, size_t n) { return counted(__libc_calloc(k, n)); }
void *memalign(size_t a, size_t n) { return counted(__libc_memalign(a, n)); }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }

int posix_memalign(void **result, size_t a, size_t n) {
  void *p = memalign(a, n);
  if (p) *result = p;
  return p ? 0 : ENOMEM;
}

void free(void *p) {
  if (p) change(-size_of(p));
  __libc_free(p);
}

void *realloc(void *p, size_t n) {
  long before = size_of(p);
  void *q = __libc_realloc(p, n);
  if (q || !n) change(size_of(q) - before);
  return q;
}

void log_start(void) {
  atomic_store(&base, atomic_load(&total));
  atomic_store(&highest, atomic_load(&total));
  atomic_store(&used, 0);
  atomic_store(&listing, 1);
}

long log_stop(void) { /* the highest amount since `log_start` */
  atomic_store(&listing, 0);
  return atomic_load(&highest) - atomic_load(&base);
}

long log_count(void) {
  long n = atomic_load(&used);
  return n < EVENTS ? n : EVENTS;
}

long log_event(long k) { return events[k]; }
