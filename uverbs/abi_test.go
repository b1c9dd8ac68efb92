//go:build linux

package uverbs

import (
	"bytes"
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softnic/softnic/device"
)

// The interface as the C compiler sees the system's headers: testdata/abi.c prints it.
//
//go:embed testdata/abi.txt
var abiText string

// place is where a member stands in its structure. Of a structure, and of a constant, off is the size, or
// the value.
type place struct{ off, size int }

var abi = func() map[string]place {
	m := map[string]place{}
	for _, line := range strings.Split(strings.TrimSpace(abiText), "\n") {
		var name string
		var p place
		if n, _ := fmt.Sscan(line, &name, &p.off, &p.size); n < 2 {
			panic(line)
		}
		m[name] = p
	}
	return m
}()

func at(name string) place {
	p, ok := abi[name]
	if !ok {
		panic(name + " is not in testdata/abi.txt")
	}
	return p
}

// structure is a C structure in the making.
type structure struct {
	name string
	b    []byte
}

func newStruct(name string) structure { return structure{name, make([]byte, at(name).off)} }

// view is a structure that is there.
func view(name string, b []byte) structure { return structure{name, b} }

func (s structure) put(member string, v uint64) structure {
	p := at(s.name + "." + member)
	for i := range p.size {
		s.b[p.off+i] = byte(v >> (8 * i))
	}
	return s
}

func (s structure) bytes(member string, b []byte) structure {
	p := at(s.name + "." + member)
	if len(b) != p.size {
		panic(member)
	}
	copy(s.b[p.off:], b)
	return s
}

func (s structure) get(member string) uint64 {
	p := at(s.name + "." + member)
	v := uint64(0)
	for i := range p.size {
		v |= uint64(s.b[p.off+i]) << (8 * i)
	}
	return v
}

func (s structure) at(member string) []byte {
	p := at(s.name + "." + member)
	return s.b[p.off : p.off+p.size]
}

// What the tests believe about the interface is what the headers say.
func TestABI(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: testdata/abi.txt is taken as it is")
	}
	bin := filepath.Join(t.TempDir(), "abi")
	if out, err := exec.Command(gcc, "-o", bin, "testdata/abi.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, []byte(abiText)) {
		t.Fatal("testdata/abi.txt is not what testdata/abi.c prints here")
	}
}

// The numbers in the code are those of the headers. What the commands read by number is tested by
// commands that the tests build from abi.txt: TestModifyQuery and others give every member a value of its own.
func TestABIConstants(t *testing.T) {
	const cmd = "IB_USER_VERBS_CMD_"
	off := func(name string) int { return at(name).off }
	for name, c := range map[string]struct{ got, want int }{
		"flag extended":        {cmdExtended, off(cmd + "FLAG_EXTENDED")},
		"mask":                 {cmdMask, off(cmd + "COMMAND_MASK")},
		"GET_CONTEXT":          {cmdGetContext, off(cmd + "GET_CONTEXT")},
		"QUERY_DEVICE":         {cmdQueryDevice, off(cmd + "QUERY_DEVICE")},
		"QUERY_PORT":           {cmdQueryPort, off(cmd + "QUERY_PORT")},
		"ALLOC_PD":             {cmdAllocPD, off(cmd + "ALLOC_PD")},
		"DEALLOC_PD":           {cmdDeallocPD, off(cmd + "DEALLOC_PD")},
		"CREATE_AH":            {cmdCreateAH, off(cmd + "CREATE_AH")},
		"DESTROY_AH":           {cmdDestroyAH, off(cmd + "DESTROY_AH")},
		"REG_MR":               {cmdRegMR, off(cmd + "REG_MR")},
		"DEREG_MR":             {cmdDeregMR, off(cmd + "DEREG_MR")},
		"ALLOC_MW":             {cmdAllocMW, off(cmd + "ALLOC_MW")},
		"DEALLOC_MW":           {cmdDeallocMW, off(cmd + "DEALLOC_MW")},
		"CREATE_COMP_CHANNEL":  {cmdCreateCompChannel, off(cmd + "CREATE_COMP_CHANNEL")},
		"CREATE_CQ":            {cmdCreateCQ, off(cmd + "CREATE_CQ")},
		"DESTROY_CQ":           {cmdDestroyCQ, off(cmd + "DESTROY_CQ")},
		"REQ_NOTIFY_CQ":        {cmdReqNotifyCQ, off(cmd + "REQ_NOTIFY_CQ")},
		"CREATE_QP":            {cmdCreateQP, off(cmd + "CREATE_QP")},
		"QUERY_QP":             {cmdQueryQP, off(cmd + "QUERY_QP")},
		"MODIFY_QP":            {cmdModifyQP, off(cmd + "MODIFY_QP")},
		"DESTROY_QP":           {cmdDestroyQP, off(cmd + "DESTROY_QP")},
		"POST_SEND":            {cmdPostSend, off(cmd + "POST_SEND")},
		"ATTACH_MCAST":         {cmdAttachMcast, off(cmd + "ATTACH_MCAST")},
		"DETACH_MCAST":         {cmdDetachMcast, off(cmd + "DETACH_MCAST")},
		"CREATE_SRQ":           {cmdCreateSRQ, off(cmd + "CREATE_SRQ")},
		"DESTROY_SRQ":          {cmdDestroySRQ, off(cmd + "DESTROY_SRQ")},
		"ring shift":           {ringShift, off("rxe_queue_buf.log2_elem_size")},
		"ring mask":            {ringMask, off("rxe_queue_buf.index_mask")},
		"ring producer":        {ringProducer, off("rxe_queue_buf.producer_index")},
		"ring consumer":        {ringConsumer, off("rxe_queue_buf.consumer_index")},
		"ring data":            {ringData, off("rxe_queue_buf.data")},
		"wqe id":               {wqeID, off("rxe_send_wqe.wr.wr_id")},
		"wqe opcode":           {wqeOpcode, off("rxe_send_wqe.wr.opcode")},
		"wqe flags":            {wqeFlags, off("rxe_send_wqe.wr.send_flags")},
		"wqe imm":              {wqeImm, off("rxe_send_wqe.wr.ex.imm_data")},
		"wqe remote":           {wqeRemote, off("rxe_send_wqe.wr.wr.rdma.remote_addr")},
		"wqe rkey":             {wqeRKey, off("rxe_send_wqe.wr.wr.rdma.rkey")},
		"wqe atomic remote":    {wqeRemote, off("rxe_send_wqe.wr.wr.atomic.remote_addr")},
		"wqe compare":          {wqeCompare, off("rxe_send_wqe.wr.wr.atomic.compare_add")},
		"wqe swap":             {wqeSwap, off("rxe_send_wqe.wr.wr.atomic.swap")},
		"wqe atomic key":       {wqeAtomKey, off("rxe_send_wqe.wr.wr.atomic.rkey")},
		"wqe key":              {wqeImm, off("rxe_send_wqe.wr.ex.invalidate_rkey")},
		"wqe mw address":       {wqeMWAddr, off("rxe_send_wqe.wr.wr.mw.addr")},
		"wqe mw length":        {wqeMWLength, off("rxe_send_wqe.wr.wr.mw.length")},
		"wqe mw region":        {wqeMWMRKey, off("rxe_send_wqe.wr.wr.mw.mr_lkey")},
		"wqe mw key":           {wqeMWKey, off("rxe_send_wqe.wr.wr.mw.mw_rkey")},
		"wqe mw new key":       {wqeMWNewKey, off("rxe_send_wqe.wr.wr.mw.rkey")},
		"wqe mw access":        {wqeMWAccess, off("rxe_send_wqe.wr.wr.mw.access")},
		"wqe ud qpn":           {wqeUDQPN, off("rxe_send_wqe.wr.wr.ud.remote_qpn")},
		"wqe ud qkey":          {wqeUDQKey, off("rxe_send_wqe.wr.wr.ud.remote_qkey")},
		"wqe ud ah":            {wqeUDAHNum, off("rxe_send_wqe.wr.wr.ud.ah_num")},
		"wqe length":           {wqeLength, off("rxe_send_wqe.dma.length")},
		"wqe sges":             {wqeNumSGE, off("rxe_send_wqe.dma.num_sge")},
		"wqe list":             {sendWQELen, off("rxe_send_wqe.dma.sge")},
		"wqe inline":           {sendWQELen, off("rxe_send_wqe.dma.inline_data")},
		"recv id":              {wqeID, off("rxe_recv_wqe.wr_id")},
		"recv sges":            {recvNumSGE, off("rxe_recv_wqe.dma.num_sge")},
		"recv list":            {recvWQELen, off("rxe_recv_wqe.dma.sge")},
		"sge":                  {sgeLen, off("rxe_sge")},
		"query device":         {queryDeviceLen, off("ib_uverbs_query_device_resp")},
		"access mw bind":       {accessMWBind, off("IB_UVERBS_ACCESS_MW_BIND")},
		"access huge":          {accessHugeTLB, off("IB_UVERBS_ACCESS_HUGETLB")},
		"access optional":      {accessOptional, off("IB_UVERBS_ACCESS_OPTIONAL_RANGE")},
		"access local write":   {int(device.LocalWrite), off("IB_UVERBS_ACCESS_LOCAL_WRITE")},
		"access remote write":  {int(device.RemoteWrite), off("IB_UVERBS_ACCESS_REMOTE_WRITE")},
		"access remote read":   {int(device.RemoteRead), off("IB_UVERBS_ACCESS_REMOTE_READ")},
		"access remote atomic": {int(device.RemoteAtomic), off("IB_UVERBS_ACCESS_REMOTE_ATOMIC")},
		"qp rc":                {int(device.RC), off("IB_UVERBS_QPT_RC")},
		"qp ud":                {int(device.UD), off("IB_UVERBS_QPT_UD")},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, the headers have %d", name, c.got, c.want)
		}
	}
	// Lengths of requests and responses: those of the structures, for the extended forms up to the
	// member that uverbs_cmd.c:uverbs_def_write_intf names.
	end := func(name string) int { return at(name).off + at(name).size }
	for n, want := range map[uint32]struct{ req, resp int }{
		cmdGetContext:                {off("ib_uverbs_get_context"), off("ib_uverbs_get_context_resp")},
		cmdQueryDevice:               {off("ib_uverbs_query_device"), off("ib_uverbs_query_device_resp")},
		cmdQueryPort:                 {off("ib_uverbs_query_port"), off("ib_uverbs_query_port_resp")},
		cmdAllocPD:                   {off("ib_uverbs_alloc_pd"), off("ib_uverbs_alloc_pd_resp")},
		cmdDeallocPD:                 {off("ib_uverbs_dealloc_pd"), 0},
		cmdCreateAH:                  {off("ib_uverbs_create_ah"), off("ib_uverbs_create_ah_resp")},
		cmdDestroyAH:                 {off("ib_uverbs_destroy_ah"), 0},
		cmdRegMR:                     {off("ib_uverbs_reg_mr"), off("ib_uverbs_reg_mr_resp")},
		cmdDeregMR:                   {off("ib_uverbs_dereg_mr"), 0},
		cmdAllocMW:                   {off("ib_uverbs_alloc_mw"), off("ib_uverbs_alloc_mw_resp")},
		cmdDeallocMW:                 {off("ib_uverbs_dealloc_mw"), 0},
		cmdCreateCompChannel:         {off("ib_uverbs_create_comp_channel"), off("ib_uverbs_create_comp_channel_resp")},
		cmdCreateCQ:                  {off("ib_uverbs_create_cq"), off("ib_uverbs_create_cq_resp")},
		cmdDestroyCQ:                 {off("ib_uverbs_destroy_cq"), off("ib_uverbs_destroy_cq_resp")},
		cmdReqNotifyCQ:               {off("ib_uverbs_req_notify_cq"), 0},
		cmdCreateQP:                  {off("ib_uverbs_create_qp"), off("ib_uverbs_create_qp_resp")},
		cmdQueryQP:                   {off("ib_uverbs_query_qp"), off("ib_uverbs_query_qp_resp")},
		cmdModifyQP:                  {off("ib_uverbs_modify_qp"), 0},
		cmdDestroyQP:                 {off("ib_uverbs_destroy_qp"), off("ib_uverbs_destroy_qp_resp")},
		cmdPostSend:                  {off("ib_uverbs_post_send"), off("ib_uverbs_post_send_resp")},
		cmdAttachMcast:               {off("ib_uverbs_attach_mcast"), 0},
		cmdDetachMcast:               {off("ib_uverbs_detach_mcast"), 0},
		cmdQueryDevice | cmdExtended: {end("ib_uverbs_ex_query_device.reserved"), end("ib_uverbs_ex_query_device_resp.response_length")},
		cmdCreateCQ | cmdExtended:    {end("ib_uverbs_ex_create_cq.reserved"), end("ib_uverbs_ex_create_cq_resp.response_length")},
		cmdCreateQP | cmdExtended:    {end("ib_uverbs_ex_create_qp.comp_mask"), end("ib_uverbs_ex_create_qp_resp.response_length")},
		cmdModifyQP | cmdExtended:    {end("ib_uverbs_ex_modify_qp.base"), end("ib_uverbs_ex_modify_qp_resp.response_length")},
	} {
		c := find(n&cmdMask, n&cmdExtended != 0)
		if c == nil || c.req != want.req || c.resp != want.resp {
			t.Errorf("command 0x%x: %+v, the headers have %+v", n, c, want)
		}
	}
}
