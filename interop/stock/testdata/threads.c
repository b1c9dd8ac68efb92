// Two threads on one extended completion queue (case 47). The entries are logged with no lock but the queue's own, which
// is held from a start_poll that succeeds to end_poll.
//
//	threads MESSAGES NEXT
//
// With NEXT 0 a batch is one entry: before rdma-core 56 a next_poll that finds none breaks librxe's queue.

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 32

static void check(int ok, const char *what, long got)
{
	if (!ok) {
		fprintf(stderr, "%s: %ld\n", what, got);
		exit(1);
	}
}

static struct ibv_cq_ex *cq;
static long messages, allow_next;
static uint32_t receiver;
static atomic_long polled;
static long taken[2], *seen;
static int inside; // the lock guards it

static void *poller(void *arg)
{
	long *mine = arg;
	struct ibv_poll_cq_attr attr = {0};

	while (atomic_load(&polled) < messages) {
		int err = ibv_start_poll(cq, &attr);
		if (err) {
			check(err == ENOENT, "start_poll", err);
			sched_yield();
			continue;
		}
		check(!inside, "threads inside of a batch", inside);
		inside = 1;
		do {
			long at = atomic_load(&polled);
			check(at < messages, "completions", at + 1);
			check(cq->status == IBV_WC_SUCCESS, "status", cq->status);
			check(ibv_wc_read_opcode(cq) == IBV_WC_RECV, "opcode", ibv_wc_read_opcode(cq));
			check(ibv_wc_read_byte_len(cq) == 8, "byte_len", ibv_wc_read_byte_len(cq));
			check(ibv_wc_read_qp_num(cq) == receiver, "qp_num", ibv_wc_read_qp_num(cq));
			seen[at] = cq->wr_id;
			++*mine;
			atomic_store(&polled, at + 1);
			if (at % 7 == 0)
				sched_yield(); // the other thread tries meanwhile
		} while (allow_next && (err = ibv_next_poll(cq)) == 0);
		check(!allow_next || err == ENOENT, "next_poll", err);
		inside = 0;
		ibv_end_poll(cq);
	}
	return NULL;
}

static atomic_int trying, returned;

static void *outsider(void *arg)
{
	struct ibv_poll_cq_attr attr = {0};

	atomic_store(&trying, 1);
	int err = ibv_start_poll(cq, &attr);
	atomic_store(&returned, 1);
	if (!err)
		ibv_end_poll(cq);
	*(int *)arg = err;
	return NULL;
}

static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv)
{
	struct ibv_qp_init_attr init = {.send_cq = send, .recv_cq = recv, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *q = ibv_create_qp(pd, &init);

	check(q != NULL, "create_qp", errno);
	return q;
}

static void ready(struct ibv_qp *q, uint32_t peer, union ibv_gid *gid)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	int err = ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	check(!err, "INIT", err);
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = 1, .hop_limit = 64}}};
	err = ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	check(!err, "RTR", err);
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7};
	err = ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	check(!err, "RTS", err);
}

int main(int argc, char **argv)
{
	check(argc == 3, "arguments", argc);
	messages = atol(argv[1]);
	allow_next = atol(argv[2]);
	seen = calloc(messages, sizeof(*seen));

	struct ibv_device **list = ibv_get_device_list(NULL);
	check(list && list[0], "devices", 0);
	struct ibv_context *ctx = ibv_open_device(list[0]);
	check(ctx != NULL, "open_device", errno);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *scq = ibv_create_cq(ctx, 2 * DEPTH, NULL, NULL, 0);
	struct ibv_cq_init_attr_ex init = {.cqe = 2 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS};
	cq = ibv_create_cq_ex(ctx, &init);
	check(pd && scq && cq, "objects", errno);
	static uint64_t buf[2];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "reg_mr", errno);
	union ibv_gid gid;
	check(!ibv_query_gid(ctx, 1, 1, &gid), "query_gid", errno);
	struct ibv_qp *q = make(pd, scq, scq), *p = make(pd, scq, ibv_cq_ex_to_cq(cq));
	ready(q, p->qp_num, &gid);
	ready(p, q->qp_num, &gid);
	receiver = p->qp_num;

	struct ibv_sge from = {(uintptr_t)&buf[0], 8, mr->lkey}, to = {(uintptr_t)&buf[1], 8, mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &to, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_wc wc;
	struct ibv_poll_cq_attr attr = {0};
	pthread_t thread[2];
	int err;

	// An empty queue: nothing is held, for this thread and for another.
	for (int i = 0; i < 2; i++) {
		err = ibv_start_poll(cq, &attr);
		check(err == ENOENT, "start_poll on an empty queue", err);
	}
	pthread_create(&thread[0], NULL, outsider, &err);
	pthread_join(thread[0], NULL);
	check(err == ENOENT, "start_poll on an empty queue, another thread", err);

	// One entry: another thread waits until the batch ends, and finds nothing more.
	check(!ibv_post_recv(p, &recv, &bad_recv) && !ibv_post_send(q, &send, &bad_send), "post", errno);
	while (ibv_poll_cq(scq, 1, &wc) == 0)
		;
	check(wc.status == IBV_WC_SUCCESS, "send", wc.status);
	err = ibv_start_poll(cq, &attr);
	check(!err, "start_poll", err);
	atomic_store(&trying, 0);
	atomic_store(&returned, 0);
	pthread_create(&thread[0], NULL, outsider, &err);
	while (!atomic_load(&trying))
		sched_yield();
	for (int i = 0; i < 1000; i++)
		sched_yield();
	check(!atomic_load(&returned), "start_poll of another thread inside of a batch", err);
	ibv_end_poll(cq);
	pthread_join(thread[0], NULL);
	check(err == ENOENT, "start_poll behind the batch", err);

	for (int i = 0; i < 2; i++)
		pthread_create(&thread[i], NULL, poller, &taken[i]);
	long done = 0, sent = 0;
	while (done < messages) {
		while (sent < messages && sent - atomic_load(&polled) < DEPTH && sent - done < DEPTH) {
			recv.wr_id = send.wr_id = sent++;
			err = ibv_post_recv(p, &recv, &bad_recv);
			check(!err, "post_recv", err);
			err = ibv_post_send(q, &send, &bad_send);
			check(!err, "post_send", err);
		}
		if (ibv_poll_cq(scq, 1, &wc)) {
			check(wc.status == IBV_WC_SUCCESS, "send", wc.status);
			done++;
		} else {
			sched_yield();
		}
	}
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	for (long i = 0; i < messages; i++)
		check(seen[i] == i, "out of order: completion", seen[i]);
	check(taken[0] + taken[1] == messages, "completions", taken[0] + taken[1]);
	err = ibv_start_poll(cq, &attr);
	check(err == ENOENT, "one too many", err);
	printf("%ld %ld\n", taken[0], taken[1]);
	return ibv_destroy_qp(q) || ibv_destroy_qp(p) || ibv_destroy_cq(scq) || ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) || ibv_dereg_mr(mr) ||
		ibv_dealloc_pd(pd) || ibv_close_device(ctx);
}
