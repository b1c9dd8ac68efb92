package cases

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Answers that impairment rules forge stand in a capture where their receiver took them, also while time stands still: what a softnic
// does because of them breaks no rule, in its own capture and in that of both ends. The seeds are of connections that survive it: a NAK
// also acknowledges what its responder never took.
func TestTraceOfForgedAnswers(t *testing.T) {
	for _, nak := range []string{"nak-sequence", "rnr:5"} {
		for _, dir := range []string{"tx", "rx"} {
			for _, seed := range []uint64{0, 1, 2, 3, 5} {
				bubble(t, fmt.Sprintf("%s %s seed %d", nak, dir, seed), func(t *testing.T) {
					r := rand.New(rand.NewPCG(seed, 0))
					rule := fmt.Sprintf("%s opcode=%s answer=%s p=2%% seed=%d", dir, requestOpcodes, nak, 1+r.IntN(1000))
					tp, o := lossy(t, r, 100, []string{rule}, nil)
					for _, hosts := range [][]int{{0, 1}, {0}} { // the other's capture cannot know who has made an answer
						x := analyze(t, tp.write(hosts...), o)
						if x.Broken > 0 || x.Conversations[0].AB.ForgedOnPurpose+x.Conversations[0].BA.ForgedOnPurpose == 0 {
							t.Errorf("hosts %v:\n%s", hosts, broken(x))
						}
					}
				})
			}
		}
	}
}
