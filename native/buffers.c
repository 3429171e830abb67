/* An allocator for NumPy's arrays (NEP 49) that keeps large blocks and gives them out again: a training step asks for the same sizes in
 * every epoch, and fresh memory costs a page fault for every page. All blocks start at a cache line. */
#define _DEFAULT_SOURCE
#include "buffers.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LINE 64
#define LARGE (1 << 18)         /* smaller blocks are malloc's */
#define ZERO_PIECE (1 << 20)

/* Stands in the cache line before a block. */
struct header {
    size_t size;                /* bytes, this line included */
    int mapped;                 /* or malloc's */
    struct header *next;        /* in the list of idle blocks */
};

struct sar_buffers {
    struct sar_handler handler; /* first: NumPy gets its address */
    pthread_mutex_t lock;
    struct header *idle;
    int64_t n_live, n_fresh, bytes;
    int closed;
};

/* The smallest idle block of at least `size` bytes and at most twice that, taken from the list; NULL if there is none. */
static struct header *take_idle(struct sar_buffers *b, size_t size)
{
    struct header **best = NULL;
    for (struct header **at = &b->idle; *at; at = &(*at)->next)
        if ((*at)->size >= size && (*at)->size / 2 <= size && (!best || (*at)->size < (*best)->size)) best = at;
    if (!best) return NULL;
    struct header *found = *best;
    *best = found->next;
    return found;
}

static struct header *map_fresh(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(p, size, MADV_HUGEPAGE);
#endif
    *(struct header *)p = (struct header){size, 1, NULL};
    return p;
}

static void give_back(struct header *h)
{
    if (h->mapped) munmap(h, h->size);
    else free(h);
}

/* A block; *zeroed tells whether it is known to be all zeros. */
static void *allocate(struct sar_buffers *b, size_t size, int *zeroed)
{
    struct header *h;
    *zeroed = 0;
    if (size > SIZE_MAX - LINE) return NULL;
    if (size < LARGE) {
        void *p;
        if (posix_memalign(&p, LINE, size + LINE)) return NULL;
        h = p;
        *h = (struct header){size + LINE, 0, NULL};
    } else {
        pthread_mutex_lock(&b->lock);
        h = take_idle(b, size + LINE);
        pthread_mutex_unlock(&b->lock);
        if (!h) {
            h = map_fresh(size + LINE);
            if (!h) return NULL;
            *zeroed = 1;
        }
    }
    pthread_mutex_lock(&b->lock);
    b->n_live++;
    b->n_fresh += *zeroed;
    b->bytes += *zeroed ? (int64_t)h->size : 0;
    pthread_mutex_unlock(&b->lock);
    return (char *)h + LINE;
}

static void *buffers_malloc(void *context, size_t size)
{
    int zeroed;
    return allocate(context, size, &zeroed);
}

static void *buffers_calloc(void *context, size_t n, size_t size)
{
    int zeroed;
    if (size && n > SIZE_MAX / size) return NULL;
    char *p = allocate(context, n * size, &zeroed);
    if (!p || zeroed) return p;
    int64_t bytes = (int64_t)(n * size);
    if (bytes < 4 * ZERO_PIECE) return memset(p, 0, (size_t)bytes);
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < bytes; at += ZERO_PIECE) memset(p + at, 0, (size_t)(bytes - at < ZERO_PIECE ? bytes - at : ZERO_PIECE));
    return p;
}

static void buffers_free(void *context, void *block, size_t size)
{
    struct sar_buffers *b = context;
    struct header *h = block ? (struct header *)((char *)block - LINE) : NULL;
    (void)size;
    if (!h) return;
    pthread_mutex_lock(&b->lock);
    int last = --b->n_live == 0 && b->closed, keep = h->mapped && !b->closed;
    if (keep) h->next = b->idle, b->idle = h;
    else if (h->mapped) b->bytes -= (int64_t)h->size;
    pthread_mutex_unlock(&b->lock);
    if (!keep) give_back(h);
    if (last) free(b);
}

static void *buffers_realloc(void *context, void *block, size_t size)
{
    void *fresh = buffers_malloc(context, size);
    if (!block || !fresh) return fresh;
    size_t held = ((struct header *)((char *)block - LINE))->size - LINE;
    memcpy(fresh, block, held < size ? held : size);
    buffers_free(context, block, held);
    return fresh;
}

/* New buffers, or NULL without memory. Their address is that of a PyDataMem_Handler. */
struct sar_buffers *sar_buffers_open(void)
{
    struct sar_buffers *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->handler = (struct sar_handler){"sarlite", 1, {b, buffers_malloc, buffers_calloc, buffers_realloc, buffers_free}};
    pthread_mutex_init(&b->lock, NULL);
    return b;
}

/* Give idle blocks back to the system. */
void sar_buffers_trim(struct sar_buffers *b)
{
    pthread_mutex_lock(&b->lock);
    struct header *h = b->idle;
    b->idle = NULL;
    for (struct header *at = h; at; at = at->next) b->bytes -= (int64_t)at->size;
    pthread_mutex_unlock(&b->lock);
    for (struct header *next; h; h = next) next = h->next, give_back(h);
}

/* The same, and free what is still in use as soon as it is not; `b` ends with its last block. */
void sar_buffers_close(struct sar_buffers *b)
{
    sar_buffers_trim(b);
    pthread_mutex_lock(&b->lock);
    b->closed = 1;
    int last = b->n_live == 0;
    pthread_mutex_unlock(&b->lock);
    if (last) free(b);
}

/* Large blocks mapped so far. */
int64_t sar_buffers_fresh(const struct sar_buffers *b) { return b->n_fresh; }

/* Bytes of large blocks, in use and idle. */
int64_t sar_buffers_bytes(const struct sar_buffers *b) { return b->bytes; }
