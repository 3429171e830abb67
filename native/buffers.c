/* An allocator for NumPy's arrays (NEP 49). Large blocks stand in one range of addresses: the first free one that is
 * large enough is taken, what is left of it stays free, and freed neighbours join. A training step asks for the same
 * sizes in the same order in every epoch, so that all but the first find their places in touched memory, whereas
 * fresh memory costs a page fault for every page; and the range is little longer than the most that was ever in use.
 * All blocks start at a cache line.
 *
 * Who may still allocate or free holds NumPy's capsule of the handler: every array, and every context that was
 * entered or copied from one that was. So the capsule's end is the buffers' end, whoever outlives whom. */
#define _DEFAULT_SOURCE
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include "sarlite.h"
#include "handler.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE 64
#define LARGE (1 << 18)
#define ZERO_PIECE (1 << 20)
#define HUGE_PAGE (1 << 21)    /* of x86-64, and of arm64 with pages of 4 KiB */

/* Stands in the cache line before a block. */
struct header {
    size_t size;                /* bytes, this line included; of blocks in the range a multiple of LINE */
    struct header *next;        /* the free block at the next higher address */
};

struct sar_buffers {
    struct sar_handler handler; /* first: NumPy gets its address */
    pthread_mutex_t lock;
    char *begin, *top, *end;    /* the range; from top on all zeros */
    struct header *idle;        /* the free block of the lowest address */
    size_t large;               /* smaller blocks are malloc's, and so are all where no range can be reserved */
    int64_t n_fresh;
    int closed;                 /* nobody asks for memory again and again: large blocks are malloc's, freed ones given back */
};

/* As many addresses as the machine has memory: pages take memory only once they are touched. They begin at a huge
 * page, so that the memory taken is `top` rounded up to one. */
static void reserve(struct sar_buffers *b)
{
    size_t size = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return;
    size_t before = -(uintptr_t)p % HUGE_PAGE;
    if (before) munmap(p, before);
    munmap(p + before + size, HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
    madvise(p + before, size, MADV_HUGEPAGE);
#endif
    b->begin = b->top = p + before, b->end = b->begin + size;
}

/* The destructor of the capsule. */
void sar_buffers_end(void *capsule)
{
    struct sar_buffers *b = PyCapsule_GetPointer(capsule, "mem_handler");
    if (b->begin) munmap(b->begin, (size_t)(b->end - b->begin));
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static int in_range(const struct sar_buffers *b, const struct header *h) { return (char *)h >= b->begin && (char *)h < b->end; }

/* Take `size` bytes of the first free block that has them, else from the top, where a free block that ends there is
 * used up first. NULL where the range ends; *zeroed where all is fresh. */
static struct header *take(struct sar_buffers *b, size_t size, int *zeroed)
{
    struct header **at = &b->idle, *h = NULL;
    for (; *at; at = &(*at)->next) {
        h = *at;
        if (h->size >= size || (char *)h + h->size == b->top) break;
    }
    if (*at && h->size > size) {
        struct header *rest = (struct header *)((char *)h + size);
        *rest = (struct header){h->size - size, h->next};
        *at = rest;
    } else if (*at && h->size == size) {
        *at = h->next;
    } else {
        char *start = *at ? (char *)h : b->top;
        if (size > (size_t)(b->end - start)) return NULL;
        *zeroed = !*at;
        *at = NULL;             /* the last of the list, if any */
        b->top = start + size;
        b->n_fresh++;
        h = (struct header *)start;
    }
    h->size = size;
    return h;
}

/* Put a block into the list and join it with free neighbours. */
static void put(struct sar_buffers *b, struct header *h)
{
    struct header *before = NULL, *after = b->idle;
    while (after && after < h) before = after, after = after->next;
    h->next = after;
    if (before) before->next = h;
    else b->idle = h;
    if (after && (char *)h + h->size == (char *)after) h->size += after->size, h->next = after->next;
    if (before && (char *)before + before->size == (char *)h) before->size += h->size, before->next = h->next;
}

/* The first page that begins at an address or after it. */
static char *page_up(char *address)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return (char *)(((uintptr_t)address + page - 1) / page * page);
}

/* Give the whole pages between two addresses back to the system: they are zeros from here on. Returns the first of
 * them. */
static char *give_back(char *begin, char *end)
{
    char *first = page_up(begin), *last = page_up(end + 1) - sysconf(_SC_PAGESIZE);
    if (first < last) madvise(first, (size_t)(last - first), MADV_DONTNEED);
    return first;
}

/* A block; *zeroed tells whether it is known to be all zeros. */
static void *allocate(struct sar_buffers *b, size_t size, int *zeroed)
{
    struct header *h = NULL;
    *zeroed = 0;
    if (size > SIZE_MAX / 2) return NULL;
    size = (size + 2 * LINE - 1) / LINE * LINE;
    if (size > b->large) {
        pthread_mutex_lock(&b->lock);
        if (!b->closed) h = take(b, size, zeroed);
        pthread_mutex_unlock(&b->lock);
    }
    if (!h) {
        void *p = NULL;
        if (posix_memalign(&p, LINE, size)) return NULL;
        h = p;
        h->size = size;
    }
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
    if (!in_range(b, h)) {
        free(h);
        return;
    }
    pthread_mutex_lock(&b->lock);
    if (b->closed) give_back((char *)h, (char *)h + h->size);
    else put(b, h);
    pthread_mutex_unlock(&b->lock);
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

/* New buffers, or NULL without memory. Their address is that of a PyDataMem_Handler, for a capsule whose destructor
 * is sar_buffers_end. */
struct sar_buffers *sar_buffers_open(void)
{
    struct sar_buffers *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->handler = (struct sar_handler){"sarlite", 1, {b, buffers_malloc, buffers_calloc, buffers_realloc, buffers_free}};
    b->large = LARGE;
    pthread_mutex_init(&b->lock, NULL);
    reserve(b);
    return b;
}

/* Give free blocks' pages back to the system; the top sinks to the last block in use. */
void sar_buffers_trim(struct sar_buffers *b)
{
#ifdef __linux__                /* elsewhere pages given back need not be zeros */
    pthread_mutex_lock(&b->lock);
    for (struct header **at = &b->idle; *at; at = &(*at)->next) {
        struct header *h = *at;
        char *end = (char *)h + h->size;
        if (end < b->top) {
            give_back((char *)h + LINE, end);
            continue;
        }
        b->top = give_back((char *)h, page_up(end));
        h->size = (size_t)(b->top - (char *)h);
        if (!h->size) *at = NULL;
        break;
    }
    pthread_mutex_unlock(&b->lock);
#else
    (void)b;
#endif
}

/* The same, and give back what is still in use as soon as it is not. */
void sar_buffers_close(struct sar_buffers *b)
{
    sar_buffers_trim(b);
    pthread_mutex_lock(&b->lock);
    b->closed = 1;
    pthread_mutex_unlock(&b->lock);
}

/* How often a large block took memory that none had before. */
int64_t sar_buffers_fresh(const struct sar_buffers *b) { return b->n_fresh; }

/* Bytes of large blocks, in use and idle. */
int64_t sar_buffers_bytes(const struct sar_buffers *b) { return b->top - b->begin; }
