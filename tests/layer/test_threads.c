/* test_threads.c - owns where threads and memory go: CPUs, cores and memory nodes read from made-up trees, threads that
 * stay on CPUs, pages on several nodes, and jobs of many phases.  It must never take what this machine has for the
 * only thing there is. */
#include "../support/layer_case.h"

#include <errno.h>
#include <ftw.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../src/cpu/cpu.h"

/* ---- made-up trees ---- */

static char root[32];

static void tree_begin(void)
{
    strcpy(root, "topology-XXXXXX");
    CHECK(mkdtemp(root) != NULL, "test: no folder %s (%s)", root, strerror(errno));
}

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)s;
    (void)kind;
    (void)at;
    return remove(path);
}

static void tree_end(void)
{
    CHECK(!nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS), "test: %s cannot be removed", root);
}

/* Writes text to root/name, folders and all; text NULL: a folder in the file's place. */
static void put(const char *name, const char *text)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path; (p = strchr(p + 1, '/'));) {
        *p = 0;
        CHECK(!mkdir(path, 0700) || errno == EEXIST, "test: no folder %s", path);
        *p = '/';
    }
    if (text) {
        FILE *f = fopen(path, "w");

        CHECK(f && fputs(text, f) >= 0 && !fclose(f), "test: %s cannot be written", path);
    } else {
        CHECK(!unlink(path) && !mkdir(path, 0700), "test: no folder %s", path);
    }
}

static void put_siblings(int32_t cpu, const char *text)
{
    char name[64];

    snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(name, text);
}

/* Nodes 0 and 2 of two cores each, two threads a core; there are no CPUs 2, 3, 6, 7, 10 and 11, and node 3 is memory
 * alone. */
static void two_nodes(void)
{
    static const int32_t pairs[][2] = {{0, 8}, {1, 9}, {4, 12}, {5, 13}};
    char text[16];

    tree_begin();
    put("node/online", "0,2-3\n");
    put("node/node0/cpulist", "0-1,8-9\n");
    put("node/node2/cpulist", "4-5,12-13\n");
    put("node/node3/cpulist", "\n");
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "%d,%d\n", pairs[i][0], pairs[i][1]);
        put_siblings(pairs[i][0], text);
        put_siblings(pairs[i][1], text);
    }
}

static cpu_numbers numbers(const int32_t *list, int32_t n)
{
    cpu_numbers s = {{0}};

    for (int32_t i = 0; i < n; i++) cpu_numbers_add(&s, list[i]);
    assert_int_equal(cpu_numbers_count(&s), n);
    return s;
}

/* The i-th thread gets want[i], on node nodes[i] and core cores[i] where these are given. */
static void check_places(const int32_t *allowed, int32_t n_allowed, const int32_t *want, const int32_t *cores,
                         const int32_t *nodes, int32_t n)
{
    cpu_numbers set = numbers(allowed, n_allowed);
    cpu_place places[16];
    char why[600] = "";
    int32_t got = cpu_places(root, &set, places, why, sizeof why);

    CHECK(got == n, "%d places, not %d: %s", got, n, why);
    for (int32_t i = 0; i < n; i++) {
        CHECK(places[i].cpu == want[i], "thread %d gets CPU %d, not %d", i, places[i].cpu, want[i]);
        if (cores) assert_int_equal(places[i].core, cores[i]);
        if (nodes) assert_int_equal(places[i].node, nodes[i]);
    }
}
#define COUNT(list) ((int32_t)(sizeof(list) / sizeof *(list)))

static const int32_t every_cpu[] = {0, 1, 4, 5, 8, 9, 12, 13};

static void cores_before_siblings_and_nodes_in_turn(void **state)
{
    static const int32_t want[] = {0, 4, 1, 5, 8, 12, 9, 13}, cores[] = {0, 4, 1, 5, 0, 4, 1, 5},
                         nodes[] = {0, 2, 0, 2, 0, 2, 0, 2};

    (void)state;
    two_nodes();
    check_places(every_cpu, COUNT(every_cpu), want, cores, nodes, COUNT(want));
    tree_end();
}

static void cpus_that_may_not_be_used(void **state)
{
    /* 8 is the only CPU of core 0 that is left: it counts as a core, and 9 as the second CPU of core 1. */
    static const int32_t allowed[] = {1, 8, 9, 12, 13}, want[] = {1, 12, 8, 13, 9}, nodes[] = {0, 2, 0, 2, 0};
    static const int32_t second[] = {5, 13}, second_want[] = {5, 13};

    (void)state;
    two_nodes();
    check_places(allowed, COUNT(allowed), want, NULL, nodes, COUNT(want));
    check_places(second, COUNT(second), second_want, NULL, NULL, COUNT(second_want));
    tree_end();
}

static void a_cpu_that_is_off(void **state)
{
    static const int32_t want[] = {0, 4, 1, 5, 8, 12, 9};

    (void)state;
    two_nodes();
    put("node/node2/cpulist", "4-5,12\n");
    put_siblings(5, "5\n");
    check_places(every_cpu, COUNT(every_cpu), want, NULL, NULL, COUNT(want));
    tree_end();
}

static void nodes_of_unequal_size(void **state)
{
    static const int32_t allowed[] = {0, 1, 2, 3}, want[] = {0, 3, 1, 2}, nodes[] = {0, 1, 0, 0};

    (void)state;
    tree_begin();
    put("node/online", "0-1\n");
    put("node/node0/cpulist", "0-2");
    put("node/node1/cpulist", "3");
    check_places(allowed, COUNT(allowed), want, want, nodes, COUNT(want));
    tree_end();
}

static void no_lists_at_all(void **state)
{
    static const int32_t allowed[] = {3, 7, 8191}, nodes[] = {0, 0, 0};

    (void)state;
    tree_begin();
    check_places(allowed, COUNT(allowed), allowed, allowed, nodes, COUNT(allowed));
    tree_end();
}

static void nodes_that_memory_goes_to(void **state)
{
    cpu_numbers set = numbers(every_cpu, COUNT(every_cpu)), nodes;
    cpu_place places[COUNT(every_cpu)];
    char why[600];

    (void)state;
    two_nodes();
    assert_int_equal(cpu_places(root, &set, places, why, sizeof why), 8);
    for (int32_t n = 1; n <= 8; n++) {
        assert_int_equal(cpu_nodes(places, n, &nodes), n == 1 ? 1 : 2);
        assert_int_equal(nodes.words[0], n == 1 ? 1 : 5); /* bits 0 and 2, as mbind takes them */
        for (int i = 1; i < CPU_SET_WORDS; i++) assert_int_equal(nodes.words[i], 0);
    }
    tree_end();
}

static void lists_that_are_wrong(void **state)
{
    static char long_list[20000];
    static const struct { const char *name, *text, *says; } cases[] = {
        {"node/online", "0-\n", "'0-'"},
        {"node/online", "0,,2\n", "'0,,2'"},
        {"node/online", "0,2,\n", "'0,2,'"},
        {"node/online", ",0\n", "',0'"},
        {"node/online", "nodes\n", "'nodes'"},
        {"node/online", "2-0\n", "'2-0'"},
        {"node/online", "0 2\n", "'0 2'"},
        {"node/online", "-1\n", "'-1'"},
        {"node/online", "0-2-3\n", "'0-2-3'"},
        {"node/online", "0\n2\n", "'0'"},
        {"node/online", "\n\n", "''"},
        {"node/online", "0-8192\n", "below 8192"},
        {"node/online", "99999999999999999999\n", "below 8192"},
        {"node/online", "", "8 CPUs"},
        {"node/online", "3\n", "8 CPUs"},
        {"node/online", "0-3\n", "node/node1/cpulist"},
        {"node/online", long_list, "shorter"},
        {"node/online", NULL, "cannot be read"},
        {"node/node2/cpulist", "4-5,x\n", "'4-5,x'"},
        {"node/node2/cpulist", "4-5,8,12-13\n", "CPU 8, which node 0"},
        {"cpu/cpu12/topology/thread_siblings_list", "4\n", "CPU 12 itself"},
        {"cpu/cpu12/topology/thread_siblings_list", "4;12\n", "'4;12'"},
    };
    cpu_numbers set = numbers(every_cpu, COUNT(every_cpu));
    cpu_place places[COUNT(every_cpu)];

    (void)state;
    for (size_t i = 0; i + 2 < sizeof long_list; i += 2) memcpy(long_list + i, "0,", 2);
    strcpy(long_list + sizeof long_list - 2, "0");
    for (int32_t i = 0; i < COUNT(cases); i++) {
        char why[600] = "";

        two_nodes();
        put(cases[i].name, cases[i].text);
        int32_t got = cpu_places(root, &set, places, why, sizeof why);
        CHECK(got == -1, "%s of '%.20s' gives %d places", cases[i].name, cases[i].text ? cases[i].text : "", got);
        CHECK(strstr(why, cases[i].says) && !strchr(why, '\n'), "\"%s\" does not say \"%s\"", why, cases[i].says);
        if (!strstr(cases[i].says, "node")) CHECK(strstr(why, cases[i].name), "\"%s\" does not name the file", why);
        tree_end();
    }
}

/* ---- threads that stay ---- */

enum { MANY = 4 };

/* As many tasks as threads, each held until all have come: so each thread does one. */
typedef struct meeting {
    atomic_int came;
    cpu_set_t  may[MANY];
    pthread_t  who[MANY];
} meeting;

static void meet(void *task, int32_t i, int32_t count)
{
    meeting *m = task;

    m->who[i] = pthread_self();
    CPU_ZERO(&m->may[i]);
    if (sched_getaffinity(0, sizeof m->may[i], &m->may[i])) CPU_ZERO(&m->may[i]);
    atomic_fetch_add(&m->came, 1);
    while (atomic_load(&m->came) < count) sched_yield();
}

static cpu_set_t own_set(void)
{
    cpu_set_t set;

    CHECK(!sched_getaffinity(0, sizeof set, &set), "test: no affinity (%s)", strerror(errno));
    return set;
}

static int32_t some_threads(void)
{
    cpu_set_t set = own_set();
    int32_t n = CPU_COUNT(&set);

    return n < MANY ? n : MANY;
}

/* Workers may use one CPU each, of those in all, and none the same or the one in `but` (-1: any); the caller keeps own. */
static void check_pinned(const moewe_device *dev, int32_t n, const cpu_set_t *own, const cpu_set_t *all, int but)
{
    meeting m = {0};
    cpu_set_t taken;
    int callers = 0;

    CPU_ZERO(&taken);
    CHECK_OK(moewe_device_for(dev, meet, &m, n));
    for (int32_t i = 0; i < n; i++) {
        if (pthread_equal(m.who[i], pthread_self())) {
            assert_true(CPU_EQUAL(&m.may[i], own));
            callers++;
            continue;
        }
        assert_int_equal(CPU_COUNT(&m.may[i]), 1);
        CPU_OR(&taken, &taken, &m.may[i]);
    }
    assert_int_equal(callers, 1);
    assert_int_equal(CPU_COUNT(&taken), n - 1);
    if (but >= 0) assert_false(CPU_ISSET((size_t)but, &taken));
    CPU_OR(&taken, &taken, all);
    assert_true(CPU_EQUAL(&taken, all));
}

static void pinned_threads_stay(void **state)
{
    int32_t n = some_threads();
    cpu_set_t all = own_set(), mine;
    moewe_device_desc desc;
    moewe_device *dev;

    (void)state;
    if (n < 2) {
        print_message("this process may use one CPU: there is nothing to pin\n");
        skip();
    }
    MOEWE_INIT(desc);
    desc.kind = MOEWE_DEVICE_CPU;
    desc.n_threads = n;
    desc.pin = 1;
    CHECK_OK(moewe_device_open(&desc, &dev));
    assert_int_equal(moewe_device_threads(dev), n);
    check_pinned(dev, n, &all, &all, -1);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) { /* wherever the caller goes, its CPU is its own */
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_ZERO(&mine);
        CPU_SET(cpu, &mine);
        CHECK(!sched_setaffinity(0, sizeof mine, &mine), "test: no CPU %d (%s)", cpu, strerror(errno));
        check_pinned(dev, n, &mine, &all, cpu);
    }
    CHECK(!sched_setaffinity(0, sizeof all, &all), "test: no way back (%s)", strerror(errno));
    moewe_device_close(dev);
}

static void other_threads_move(void **state)
{
    int32_t n = some_threads();
    cpu_set_t all = own_set();
    moewe_device *dev = open_backend(NULL, n);
    meeting m = {0};

    (void)state;
    CHECK_OK(moewe_device_for(dev, meet, &m, n));
    for (int32_t i = 0; i < n; i++) assert_true(CPU_EQUAL(&m.may[i], &all));
    moewe_device_close(dev);
}

static void run_in_turn(void *ctx, moewe_task_fn fn, void *task, int32_t count)
{
    *(int32_t *)ctx += count;
    for (int32_t i = 0; i < count; i++) fn(task, i, count);
}

static void pins_that_are_refused(void **state)
{
    int32_t calls = 0;
    moewe_executor executor = {.ctx = &calls, .n_threads = 1, .run = run_in_turn};
    moewe_device *dev = NULL;
    moewe_device_desc desc;
    cpu_set_t all = own_set();

    (void)state;
#define REFUSED(status, word, change)                                                                                  \
    MOEWE_INIT(desc);                                                                                                  \
    change;                                                                                                            \
    assert_int_equal(moewe_device_open(&desc, &dev), status);                                                          \
    says(word);                                                                                                        \
    one_sentence();                                                                                                    \
    assert_null(dev)
    REFUSED(MOEWE_E_ARG, "pin is 2", desc.pin = 2);
    REFUSED(MOEWE_E_ARG, "pin is -1", desc.pin = -1);
    REFUSED(MOEWE_E_ARG, "reserved is 1", desc.reserved = 1);
    REFUSED(MOEWE_E_ARG, "executor", (desc.pin = 1, desc.executor = &executor));
    if (CPU_COUNT(&all) < 1024) {
        REFUSED(MOEWE_E_DEVICE, "pin", (desc.pin = 1, desc.n_threads = CPU_COUNT(&all) + 1));
        says_number((uint64_t)CPU_COUNT(&all));
        says_number((uint64_t)CPU_COUNT(&all) + 1);
    }
#undef REFUSED
}

static void one_thread_a_cpu(void **state)
{
    cpu_set_t all = own_set();
    int32_t n = CPU_COUNT(&all) < 1024 ? CPU_COUNT(&all) : 1024;
    moewe_device *dev;

    (void)state;
    unsetenv("MOEWE_THREADS");
    CHECK_OK(moewe_device_open(NULL, &dev));
    assert_int_equal(moewe_device_threads(dev), n);
    moewe_device_close(dev);
}

/* ---- memory ---- */

/* Zeros from end to end, and pages that are there. */
static void check_memory(const moewe_device *dev, uint64_t bytes, moewe_span *out)
{
    moewe_need need = {bytes, 4096, MOEWE_PLACE_HOST};
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page, there = 0;
    unsigned char *in = must_alloc(pages, 1);

    CHECK_OK(moewe_device_alloc(dev, need, out));
    assert_true(out->bytes == bytes && (uintptr_t)out->ptr % page == 0);
    assert_true(bytes < 2 << 20 || (uintptr_t)out->ptr % (2 << 20) == 0);
    CHECK(!mincore(out->ptr, bytes, in), "test: mincore: %s", strerror(errno));
    for (uint64_t i = 0; i < pages; i++) there += in[i] & 1;
    CHECK(there == pages, "%llu of %llu pages are there", (unsigned long long)there, (unsigned long long)pages);
    for (uint64_t i = 0; i < bytes; i++)
        if (((char *)out->ptr)[i]) fail_msg("byte %llu is not zero", (unsigned long long)i);
    memset(out->ptr, 0xff, bytes);
    free(in);
}

static const uint64_t sizes[] = {1, 4096, 4097, (2 << 20) - 1, 2 << 20, (8 << 20) + 1, (20 << 20) + 12345};

static void every_page_is_there(void **state)
{
    int32_t tasks = 0;
    moewe_executor executor = {.ctx = &tasks, .n_threads = 3, .run = run_in_turn};
    moewe_device_desc desc;
    moewe_device *devs[3] = {open_backend(NULL, 1), open_backend(NULL, 3), NULL};
    moewe_span mem;

    (void)state;
    MOEWE_INIT(desc);
    desc.executor = &executor;
    CHECK_OK(moewe_device_open(&desc, &devs[2]));
    for (int d = 0; d < 3; d++) {
        for (int32_t i = 0; i < COUNT(sizes); i++) {
            check_memory(devs[d], sizes[i], &mem);
            moewe_device_free(devs[d], mem);
        }
        moewe_device_close(devs[d]);
    }
    assert_true(tasks >= COUNT(sizes)); /* the caller's threads take the pages where there are no others */
}

/* Two nodes, one of which this machine may not have: the kernel takes what there is.  And one that no machine has: it
 * refuses, and pages lie where they are touched. */
static void pages_go_over_the_nodes(void **state)
{
    moewe_device *dev = open_backend(NULL, 2);
    cpu_state *inner = dev->state;
    unsigned long nodes[CPU_SET_WORDS];
    moewe_span mem;
    int mode = -1;

    (void)state;
    for (int impossible = 0; impossible < 2; impossible++) {
        memset(&inner->nodes, 0, sizeof inner->nodes);
        cpu_numbers_add(&inner->nodes, impossible ? CPU_SET_BITS - 2 : 0);
        cpu_numbers_add(&inner->nodes, impossible ? CPU_SET_BITS - 3 : 1);
        inner->n_nodes = 2;
        for (int32_t i = 0; i < COUNT(sizes); i++) {
            check_memory(dev, sizes[i], &mem);
            memset(nodes, 0, sizeof nodes);
            if (syscall(SYS_get_mempolicy, &mode, nodes, (unsigned long)CPU_SET_BITS, mem.ptr, MPOL_F_ADDR)) {
                if (!i && !impossible) print_message("where pages lie cannot be asked here (%s)\n", strerror(errno));
            } else if (impossible) {
                assert_int_not_equal(mode, MPOL_INTERLEAVE);
            } else if (mode != MPOL_INTERLEAVE) {
                print_message("this system does not let pages be spread\n");
            } else {
                assert_int_equal(nodes[0] & ~3ul, 0);
                assert_int_not_equal(nodes[0] & 3, 0);
            }
            moewe_device_free(dev, mem);
        }
    }
    moewe_device_close(dev);
}

/* ---- jobs ---- */

static const int32_t phase_tasks[] = {1, 2, 7, 1, 1, 64, 3, 1};

typedef struct phases {
    int32_t    at;    /* the present phase; -1 before the first */
    int32_t    wrong; /* phases that began before the one before was done */
    int32_t    n_threads;
    atomic_int done, strange;
    atomic_int hits[64];
} phases;

static int32_t next_phase(void *state)
{
    phases *p = state;

    if (p->at >= 0) {
        int32_t n = phase_tasks[p->at];

        p->wrong += atomic_exchange(&p->done, 0) != n;
        for (int32_t i = 0; i < n; i++) p->wrong += atomic_exchange(&p->hits[i], 0) != 1;
    }
    return ++p->at < COUNT(phase_tasks) ? phase_tasks[p->at] : 0;
}

static void do_task(void *state, int32_t i, int32_t thread)
{
    phases *p = state;

    if (i >= phase_tasks[p->at] || thread < 0 || thread >= p->n_threads) atomic_fetch_add(&p->strange, 1);
    atomic_fetch_add(&p->hits[i], 1);
    atomic_fetch_add(&p->done, 1);
}

typedef struct boss {
    cpu_threads *set;
    int32_t      n_threads, pause, wrong;
} boss;

static void *run_jobs(void *arg)
{
    boss *b = arg;

    for (int i = 0; i < 300; i++) {
        phases p = {.at = -1, .n_threads = b->n_threads};
        cpu_job job = {next_phase, do_task, &p};

        if (b->pause && i % 8 == 0) usleep(2000); /* threads fall asleep: they must be woken */
        cpu_threads_run(b->set, &job);
        b->wrong += p.wrong + atomic_load(&p.strange) + (p.at != COUNT(phase_tasks));
    }
    return NULL;
}

static void phases_follow_one_another(void **state)
{
    moewe_allocator a = {0};

    (void)state;
    for (int32_t n = 1; n <= 5; n++) {
        cpu_threads *set;
        pthread_t ids[2];
        boss bosses[3] = {{NULL, n, 1, 0}, {NULL, n, 0, 0}, {NULL, n, 1, 0}};

        CHECK_OK(cpu_threads_open(&a, n, NULL, &set));
        for (int i = 0; i < 3; i++) bosses[i].set = set;
        run_jobs(&bosses[0]);
        for (int i = 0; i < 2; i++)
            if (pthread_create(&ids[i], NULL, run_jobs, &bosses[i + 1])) fail_msg("test: no thread");
        for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
        for (int i = 0; i < 3; i++) assert_int_equal(bosses[i].wrong, 0);
        cpu_threads_close(set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_before_siblings_and_nodes_in_turn),
        cmocka_unit_test(cpus_that_may_not_be_used),
        cmocka_unit_test(a_cpu_that_is_off),
        cmocka_unit_test(nodes_of_unequal_size),
        cmocka_unit_test(no_lists_at_all),
        cmocka_unit_test(nodes_that_memory_goes_to),
        cmocka_unit_test(lists_that_are_wrong),
        cmocka_unit_test(pinned_threads_stay),
        cmocka_unit_test(other_threads_move),
        cmocka_unit_test(pins_that_are_refused),
        cmocka_unit_test(one_thread_a_cpu),
        cmocka_unit_test(every_page_is_there),
        cmocka_unit_test(pages_go_over_the_nodes),
        cmocka_unit_test(phases_follow_one_another),
    };

    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
