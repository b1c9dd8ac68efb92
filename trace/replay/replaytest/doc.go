// Package replaytest makes a capture a regression test, in one line:
//
//	func TestTheirBug(t *testing.T) { replaytest.Capture(t, "testdata/bug.pcapng", replay.Options{}) }
//
// Only tests import it. It knows nothing of packets: package replay does.
package replaytest
