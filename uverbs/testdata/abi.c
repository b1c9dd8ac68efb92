/* Prints the interface as the headers of the system have it: for a member its offset and size, for a
 * structure its size, for a constant its value. TestABI compares it with abi.txt, from which the
 * tests build what a program writes. */
#include <linux/types.h>
#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_rxe.h>
#include <stddef.h>
#include <stdio.h>

#define S(s)    printf(#s " %zu\n", sizeof(struct s));
#define F(s, m) printf(#s "." #m " %zu %zu\n", offsetof(struct s, m), sizeof(((struct s *)0)->m));
#define A(s, m) printf(#s "." #m " %zu 0\n", offsetof(struct s, m));
#define E(e)    printf(#e " %lld\n", (long long)(e));

int main(void)
{
    S(ib_uverbs_cmd_hdr) F(ib_uverbs_cmd_hdr, command) F(ib_uverbs_cmd_hdr, in_words) F(ib_uverbs_cmd_hdr, out_words)
    S(ib_uverbs_ex_cmd_hdr) F(ib_uverbs_ex_cmd_hdr, response) F(ib_uverbs_ex_cmd_hdr, provider_in_words)
    F(ib_uverbs_ex_cmd_hdr, provider_out_words) F(ib_uverbs_ex_cmd_hdr, cmd_hdr_reserved)

    E(IB_USER_VERBS_CMD_FLAG_EXTENDED) E(IB_USER_VERBS_CMD_COMMAND_MASK) E(IB_USER_VERBS_ABI_VERSION)
    E(IB_USER_VERBS_CMD_GET_CONTEXT) E(IB_USER_VERBS_CMD_QUERY_DEVICE) E(IB_USER_VERBS_CMD_QUERY_PORT)
    E(IB_USER_VERBS_CMD_ALLOC_PD) E(IB_USER_VERBS_CMD_DEALLOC_PD) E(IB_USER_VERBS_CMD_CREATE_AH) E(IB_USER_VERBS_CMD_DESTROY_AH)
    E(IB_USER_VERBS_CMD_REG_MR) E(IB_USER_VERBS_CMD_DEREG_MR) E(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL)
    E(IB_USER_VERBS_CMD_CREATE_CQ) E(IB_USER_VERBS_CMD_DESTROY_CQ) E(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ) E(IB_USER_VERBS_CMD_RESIZE_CQ)
    E(IB_USER_VERBS_CMD_CREATE_QP) E(IB_USER_VERBS_CMD_QUERY_QP) E(IB_USER_VERBS_CMD_MODIFY_QP) E(IB_USER_VERBS_CMD_DESTROY_QP)
    E(IB_USER_VERBS_CMD_POST_SEND) E(IB_USER_VERBS_CMD_ATTACH_MCAST) E(IB_USER_VERBS_CMD_DETACH_MCAST)
    E(IB_USER_VERBS_CMD_CREATE_SRQ) E(IB_USER_VERBS_CMD_MODIFY_SRQ) E(IB_USER_VERBS_CMD_QUERY_SRQ) E(IB_USER_VERBS_CMD_DESTROY_SRQ)

    S(ib_uverbs_get_context) F(ib_uverbs_get_context, response)
    S(ib_uverbs_get_context_resp) F(ib_uverbs_get_context_resp, async_fd) F(ib_uverbs_get_context_resp, num_comp_vectors)

    S(ib_uverbs_query_device) F(ib_uverbs_query_device, response)
    S(ib_uverbs_query_device_resp)
    F(ib_uverbs_query_device_resp, fw_ver) F(ib_uverbs_query_device_resp, node_guid) F(ib_uverbs_query_device_resp, sys_image_guid)
    F(ib_uverbs_query_device_resp, max_mr_size) F(ib_uverbs_query_device_resp, page_size_cap) F(ib_uverbs_query_device_resp, vendor_id)
    F(ib_uverbs_query_device_resp, vendor_part_id) F(ib_uverbs_query_device_resp, hw_ver) F(ib_uverbs_query_device_resp, max_qp)
    F(ib_uverbs_query_device_resp, max_qp_wr) F(ib_uverbs_query_device_resp, device_cap_flags) F(ib_uverbs_query_device_resp, max_sge)
    F(ib_uverbs_query_device_resp, max_sge_rd) F(ib_uverbs_query_device_resp, max_cq) F(ib_uverbs_query_device_resp, max_cqe)
    F(ib_uverbs_query_device_resp, max_mr) F(ib_uverbs_query_device_resp, max_pd) F(ib_uverbs_query_device_resp, max_qp_rd_atom)
    F(ib_uverbs_query_device_resp, max_ee_rd_atom) F(ib_uverbs_query_device_resp, max_res_rd_atom)
    F(ib_uverbs_query_device_resp, max_qp_init_rd_atom) F(ib_uverbs_query_device_resp, max_ee_init_rd_atom)
    F(ib_uverbs_query_device_resp, atomic_cap) F(ib_uverbs_query_device_resp, max_ee) F(ib_uverbs_query_device_resp, max_rdd)
    F(ib_uverbs_query_device_resp, max_mw) F(ib_uverbs_query_device_resp, max_raw_ipv6_qp) F(ib_uverbs_query_device_resp, max_raw_ethy_qp)
    F(ib_uverbs_query_device_resp, max_mcast_grp) F(ib_uverbs_query_device_resp, max_mcast_qp_attach)
    F(ib_uverbs_query_device_resp, max_total_mcast_qp_attach) F(ib_uverbs_query_device_resp, max_ah) F(ib_uverbs_query_device_resp, max_fmr)
    F(ib_uverbs_query_device_resp, max_map_per_fmr) F(ib_uverbs_query_device_resp, max_srq) F(ib_uverbs_query_device_resp, max_srq_wr)
    F(ib_uverbs_query_device_resp, max_srq_sge) F(ib_uverbs_query_device_resp, max_pkeys) F(ib_uverbs_query_device_resp, local_ca_ack_delay)
    F(ib_uverbs_query_device_resp, phys_port_cnt)
    S(ib_uverbs_ex_query_device) F(ib_uverbs_ex_query_device, comp_mask) F(ib_uverbs_ex_query_device, reserved)
    S(ib_uverbs_ex_query_device_resp) F(ib_uverbs_ex_query_device_resp, base) F(ib_uverbs_ex_query_device_resp, comp_mask)
    F(ib_uverbs_ex_query_device_resp, response_length) F(ib_uverbs_ex_query_device_resp, device_cap_flags_ex)

    S(ib_uverbs_query_port) F(ib_uverbs_query_port, response) F(ib_uverbs_query_port, port_num)
    S(ib_uverbs_query_port_resp) F(ib_uverbs_query_port_resp, port_cap_flags) F(ib_uverbs_query_port_resp, max_msg_sz)
    F(ib_uverbs_query_port_resp, gid_tbl_len) F(ib_uverbs_query_port_resp, pkey_tbl_len) F(ib_uverbs_query_port_resp, state)
    F(ib_uverbs_query_port_resp, max_mtu) F(ib_uverbs_query_port_resp, active_mtu) F(ib_uverbs_query_port_resp, max_vl_num)
    F(ib_uverbs_query_port_resp, active_width) F(ib_uverbs_query_port_resp, active_speed) F(ib_uverbs_query_port_resp, phys_state)
    F(ib_uverbs_query_port_resp, link_layer) F(ib_uverbs_query_port_resp, flags)

    S(ib_uverbs_alloc_pd) F(ib_uverbs_alloc_pd, response) S(ib_uverbs_alloc_pd_resp) F(ib_uverbs_alloc_pd_resp, pd_handle)
    S(ib_uverbs_dealloc_pd) F(ib_uverbs_dealloc_pd, pd_handle)

    S(ib_uverbs_create_ah) F(ib_uverbs_create_ah, response) F(ib_uverbs_create_ah, pd_handle) F(ib_uverbs_create_ah, attr.grh.dgid)
    F(ib_uverbs_create_ah, attr.grh.flow_label) F(ib_uverbs_create_ah, attr.grh.sgid_index) F(ib_uverbs_create_ah, attr.grh.hop_limit)
    F(ib_uverbs_create_ah, attr.grh.traffic_class) F(ib_uverbs_create_ah, attr.is_global) F(ib_uverbs_create_ah, attr.port_num)
    S(ib_uverbs_create_ah_resp) F(ib_uverbs_create_ah_resp, ah_handle)
    S(ib_uverbs_destroy_ah) F(ib_uverbs_destroy_ah, ah_handle)

    S(ib_uverbs_reg_mr) F(ib_uverbs_reg_mr, response) F(ib_uverbs_reg_mr, start) F(ib_uverbs_reg_mr, length) F(ib_uverbs_reg_mr, hca_va)
    F(ib_uverbs_reg_mr, pd_handle) F(ib_uverbs_reg_mr, access_flags)
    S(ib_uverbs_reg_mr_resp) F(ib_uverbs_reg_mr_resp, mr_handle) F(ib_uverbs_reg_mr_resp, lkey) F(ib_uverbs_reg_mr_resp, rkey)
    S(ib_uverbs_dereg_mr) F(ib_uverbs_dereg_mr, mr_handle)
    E(IB_UVERBS_ACCESS_LOCAL_WRITE) E(IB_UVERBS_ACCESS_REMOTE_WRITE) E(IB_UVERBS_ACCESS_REMOTE_READ) E(IB_UVERBS_ACCESS_REMOTE_ATOMIC)
    E(IB_UVERBS_ACCESS_MW_BIND) E(IB_UVERBS_ACCESS_ZERO_BASED) E(IB_UVERBS_ACCESS_ON_DEMAND) E(IB_UVERBS_ACCESS_HUGETLB)
    E(IB_UVERBS_ACCESS_RELAXED_ORDERING) E(IB_UVERBS_ACCESS_OPTIONAL_RANGE)

    S(ib_uverbs_create_comp_channel) F(ib_uverbs_create_comp_channel, response)
    S(ib_uverbs_create_comp_channel_resp) F(ib_uverbs_create_comp_channel_resp, fd)

    S(ib_uverbs_create_cq) F(ib_uverbs_create_cq, response) F(ib_uverbs_create_cq, user_handle) F(ib_uverbs_create_cq, cqe)
    F(ib_uverbs_create_cq, comp_vector) F(ib_uverbs_create_cq, comp_channel)
    S(ib_uverbs_ex_create_cq) F(ib_uverbs_ex_create_cq, user_handle) F(ib_uverbs_ex_create_cq, cqe) F(ib_uverbs_ex_create_cq, comp_vector)
    F(ib_uverbs_ex_create_cq, comp_channel) F(ib_uverbs_ex_create_cq, comp_mask) F(ib_uverbs_ex_create_cq, flags)
    F(ib_uverbs_ex_create_cq, reserved)
    S(ib_uverbs_create_cq_resp) F(ib_uverbs_create_cq_resp, cq_handle) F(ib_uverbs_create_cq_resp, cqe)
    S(ib_uverbs_ex_create_cq_resp) F(ib_uverbs_ex_create_cq_resp, base) F(ib_uverbs_ex_create_cq_resp, comp_mask)
    F(ib_uverbs_ex_create_cq_resp, response_length)
    S(ib_uverbs_destroy_cq) F(ib_uverbs_destroy_cq, response) F(ib_uverbs_destroy_cq, cq_handle)
    S(ib_uverbs_destroy_cq_resp) F(ib_uverbs_destroy_cq_resp, comp_events_reported) F(ib_uverbs_destroy_cq_resp, async_events_reported)
    S(ib_uverbs_req_notify_cq) F(ib_uverbs_req_notify_cq, cq_handle) F(ib_uverbs_req_notify_cq, solicited_only)

    S(ib_uverbs_create_qp) F(ib_uverbs_create_qp, response) F(ib_uverbs_create_qp, user_handle) F(ib_uverbs_create_qp, pd_handle)
    F(ib_uverbs_create_qp, send_cq_handle) F(ib_uverbs_create_qp, recv_cq_handle) F(ib_uverbs_create_qp, srq_handle)
    F(ib_uverbs_create_qp, max_send_wr) F(ib_uverbs_create_qp, max_recv_wr) F(ib_uverbs_create_qp, max_send_sge)
    F(ib_uverbs_create_qp, max_recv_sge) F(ib_uverbs_create_qp, max_inline_data) F(ib_uverbs_create_qp, sq_sig_all)
    F(ib_uverbs_create_qp, qp_type) F(ib_uverbs_create_qp, is_srq)
    S(ib_uverbs_ex_create_qp) F(ib_uverbs_ex_create_qp, user_handle) F(ib_uverbs_ex_create_qp, pd_handle)
    F(ib_uverbs_ex_create_qp, send_cq_handle) F(ib_uverbs_ex_create_qp, recv_cq_handle) F(ib_uverbs_ex_create_qp, srq_handle)
    F(ib_uverbs_ex_create_qp, max_send_wr) F(ib_uverbs_ex_create_qp, max_recv_wr) F(ib_uverbs_ex_create_qp, max_send_sge)
    F(ib_uverbs_ex_create_qp, max_recv_sge) F(ib_uverbs_ex_create_qp, max_inline_data) F(ib_uverbs_ex_create_qp, sq_sig_all)
    F(ib_uverbs_ex_create_qp, qp_type) F(ib_uverbs_ex_create_qp, is_srq) F(ib_uverbs_ex_create_qp, reserved)
    F(ib_uverbs_ex_create_qp, comp_mask) F(ib_uverbs_ex_create_qp, create_flags) F(ib_uverbs_ex_create_qp, source_qpn)
    S(ib_uverbs_create_qp_resp) F(ib_uverbs_create_qp_resp, qp_handle) F(ib_uverbs_create_qp_resp, qpn)
    F(ib_uverbs_create_qp_resp, max_send_wr) F(ib_uverbs_create_qp_resp, max_recv_wr) F(ib_uverbs_create_qp_resp, max_send_sge)
    F(ib_uverbs_create_qp_resp, max_recv_sge) F(ib_uverbs_create_qp_resp, max_inline_data)
    S(ib_uverbs_ex_create_qp_resp) F(ib_uverbs_ex_create_qp_resp, base) F(ib_uverbs_ex_create_qp_resp, response_length)
    S(ib_uverbs_destroy_qp) F(ib_uverbs_destroy_qp, response) F(ib_uverbs_destroy_qp, qp_handle)
    S(ib_uverbs_destroy_qp_resp) F(ib_uverbs_destroy_qp_resp, events_reported)
    E(IB_UVERBS_QPT_RC) E(IB_UVERBS_QPT_UC) E(IB_UVERBS_QPT_UD)

    S(ib_uverbs_query_qp) F(ib_uverbs_query_qp, response) F(ib_uverbs_query_qp, qp_handle) F(ib_uverbs_query_qp, attr_mask)
    S(ib_uverbs_query_qp_resp)
    F(ib_uverbs_query_qp_resp, dest.dgid) F(ib_uverbs_query_qp_resp, dest.flow_label) F(ib_uverbs_query_qp_resp, dest.sgid_index)
    F(ib_uverbs_query_qp_resp, dest.hop_limit) F(ib_uverbs_query_qp_resp, dest.traffic_class) F(ib_uverbs_query_qp_resp, dest.is_global)
    F(ib_uverbs_query_qp_resp, dest.port_num) F(ib_uverbs_query_qp_resp, max_send_wr) F(ib_uverbs_query_qp_resp, max_recv_wr)
    F(ib_uverbs_query_qp_resp, max_send_sge) F(ib_uverbs_query_qp_resp, max_recv_sge) F(ib_uverbs_query_qp_resp, max_inline_data)
    F(ib_uverbs_query_qp_resp, qkey) F(ib_uverbs_query_qp_resp, rq_psn) F(ib_uverbs_query_qp_resp, sq_psn)
    F(ib_uverbs_query_qp_resp, dest_qp_num) F(ib_uverbs_query_qp_resp, qp_access_flags) F(ib_uverbs_query_qp_resp, pkey_index)
    F(ib_uverbs_query_qp_resp, qp_state) F(ib_uverbs_query_qp_resp, cur_qp_state) F(ib_uverbs_query_qp_resp, path_mtu)
    F(ib_uverbs_query_qp_resp, max_rd_atomic) F(ib_uverbs_query_qp_resp, max_dest_rd_atomic) F(ib_uverbs_query_qp_resp, min_rnr_timer)
    F(ib_uverbs_query_qp_resp, port_num) F(ib_uverbs_query_qp_resp, timeout) F(ib_uverbs_query_qp_resp, retry_cnt)
    F(ib_uverbs_query_qp_resp, rnr_retry) F(ib_uverbs_query_qp_resp, sq_sig_all)

    S(ib_uverbs_modify_qp)
    F(ib_uverbs_modify_qp, dest.dgid) F(ib_uverbs_modify_qp, dest.flow_label) F(ib_uverbs_modify_qp, dest.sgid_index)
    F(ib_uverbs_modify_qp, dest.hop_limit) F(ib_uverbs_modify_qp, dest.traffic_class) F(ib_uverbs_modify_qp, dest.is_global)
    F(ib_uverbs_modify_qp, dest.port_num) F(ib_uverbs_modify_qp, qp_handle) F(ib_uverbs_modify_qp, attr_mask)
    F(ib_uverbs_modify_qp, qkey) F(ib_uverbs_modify_qp, rq_psn) F(ib_uverbs_modify_qp, sq_psn) F(ib_uverbs_modify_qp, dest_qp_num)
    F(ib_uverbs_modify_qp, qp_access_flags) F(ib_uverbs_modify_qp, pkey_index) F(ib_uverbs_modify_qp, qp_state)
    F(ib_uverbs_modify_qp, cur_qp_state) F(ib_uverbs_modify_qp, path_mtu) F(ib_uverbs_modify_qp, max_rd_atomic)
    F(ib_uverbs_modify_qp, max_dest_rd_atomic) F(ib_uverbs_modify_qp, min_rnr_timer) F(ib_uverbs_modify_qp, port_num)
    F(ib_uverbs_modify_qp, timeout) F(ib_uverbs_modify_qp, retry_cnt) F(ib_uverbs_modify_qp, rnr_retry)
    S(ib_uverbs_ex_modify_qp) F(ib_uverbs_ex_modify_qp, base) F(ib_uverbs_ex_modify_qp, rate_limit)
    S(ib_uverbs_ex_modify_qp_resp) F(ib_uverbs_ex_modify_qp_resp, response_length)

    S(ib_uverbs_post_send) F(ib_uverbs_post_send, response) F(ib_uverbs_post_send, qp_handle) F(ib_uverbs_post_send, wqe_size)
    S(ib_uverbs_post_send_resp)

    S(ib_uverbs_create_srq) F(ib_uverbs_create_srq, response) F(ib_uverbs_create_srq, user_handle) F(ib_uverbs_create_srq, pd_handle)
    F(ib_uverbs_create_srq, max_wr) F(ib_uverbs_create_srq, max_sge) F(ib_uverbs_create_srq, srq_limit)
    S(ib_uverbs_create_srq_resp) F(ib_uverbs_create_srq_resp, srq_handle) F(ib_uverbs_create_srq_resp, max_wr)
    F(ib_uverbs_create_srq_resp, max_sge) F(ib_uverbs_create_srq_resp, srqn)
    S(ib_uverbs_modify_srq) F(ib_uverbs_modify_srq, srq_handle) F(ib_uverbs_modify_srq, attr_mask) F(ib_uverbs_modify_srq, max_wr)
    F(ib_uverbs_modify_srq, srq_limit)
    S(ib_uverbs_query_srq) F(ib_uverbs_query_srq, response) F(ib_uverbs_query_srq, srq_handle)
    S(ib_uverbs_query_srq_resp) F(ib_uverbs_query_srq_resp, max_wr) F(ib_uverbs_query_srq_resp, max_sge) F(ib_uverbs_query_srq_resp, srq_limit)
    S(ib_uverbs_attach_mcast) F(ib_uverbs_attach_mcast, gid) F(ib_uverbs_attach_mcast, qp_handle) F(ib_uverbs_attach_mcast, mlid)
    S(ib_uverbs_detach_mcast) F(ib_uverbs_detach_mcast, gid) F(ib_uverbs_detach_mcast, qp_handle) F(ib_uverbs_detach_mcast, mlid)
    S(ib_uverbs_destroy_srq) F(ib_uverbs_destroy_srq, response) F(ib_uverbs_destroy_srq, srq_handle)
    S(ib_uverbs_destroy_srq_resp) F(ib_uverbs_destroy_srq_resp, events_reported)

    S(ib_uverbs_async_event_desc) F(ib_uverbs_async_event_desc, element) F(ib_uverbs_async_event_desc, event_type)
    S(ib_uverbs_comp_event_desc) F(ib_uverbs_comp_event_desc, cq_handle)
    S(ib_uverbs_wc) F(ib_uverbs_wc, wr_id) F(ib_uverbs_wc, status) F(ib_uverbs_wc, opcode) F(ib_uverbs_wc, vendor_err)
    F(ib_uverbs_wc, byte_len) F(ib_uverbs_wc, ex.imm_data) F(ib_uverbs_wc, qp_num) F(ib_uverbs_wc, src_qp) F(ib_uverbs_wc, wc_flags)
    F(ib_uverbs_wc, pkey_index) F(ib_uverbs_wc, slid) F(ib_uverbs_wc, sl) F(ib_uverbs_wc, dlid_path_bits) F(ib_uverbs_wc, port_num)

    S(mminfo) F(mminfo, offset) F(mminfo, size)
    S(rxe_create_ah_resp) F(rxe_create_ah_resp, ah_num)
    S(rxe_create_cq_resp) F(rxe_create_cq_resp, mi)
    S(rxe_create_qp_resp) F(rxe_create_qp_resp, rq_mi) F(rxe_create_qp_resp, sq_mi)
    S(rxe_create_srq_resp) F(rxe_create_srq_resp, mi) F(rxe_create_srq_resp, srq_num)
    S(rxe_modify_srq_cmd) F(rxe_modify_srq_cmd, mmap_info_addr)
    A(rxe_queue_buf, log2_elem_size) A(rxe_queue_buf, index_mask) A(rxe_queue_buf, producer_index) A(rxe_queue_buf, consumer_index)
    A(rxe_queue_buf, data)
    S(rxe_sge) F(rxe_sge, addr) F(rxe_sge, length) F(rxe_sge, lkey)
    S(rxe_send_wqe) F(rxe_send_wqe, wr.wr_id) F(rxe_send_wqe, wr.opcode) F(rxe_send_wqe, wr.send_flags) F(rxe_send_wqe, wr.ex.imm_data)
    F(rxe_send_wqe, wr.wr.rdma.remote_addr) F(rxe_send_wqe, wr.wr.rdma.rkey) F(rxe_send_wqe, wr.wr.atomic.remote_addr)
    F(rxe_send_wqe, wr.wr.atomic.compare_add) F(rxe_send_wqe, wr.wr.atomic.swap) F(rxe_send_wqe, wr.wr.atomic.rkey)
    F(rxe_send_wqe, wr.wr.ud.remote_qpn) F(rxe_send_wqe, wr.wr.ud.remote_qkey) F(rxe_send_wqe, wr.wr.ud.ah_num)
    F(rxe_send_wqe, dma.length) F(rxe_send_wqe, dma.resid) F(rxe_send_wqe, dma.cur_sge) F(rxe_send_wqe, dma.num_sge)
    F(rxe_send_wqe, dma.sge_offset) A(rxe_send_wqe, dma.sge) A(rxe_send_wqe, dma.inline_data)
    S(rxe_recv_wqe) F(rxe_recv_wqe, wr_id) F(rxe_recv_wqe, dma.length) F(rxe_recv_wqe, dma.resid) F(rxe_recv_wqe, dma.cur_sge)
    F(rxe_recv_wqe, dma.num_sge) A(rxe_recv_wqe, dma.sge)
    return 0;
}
