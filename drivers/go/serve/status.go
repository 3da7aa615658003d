package serve

import (
	"context"
	"encoding/base64"
	"errors"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/gardener/machine-controller-manager/drivers/go/driverpb"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

const (
	// The longest message, in bytes. A header carries the message, a detail repeats it, and peers limit the size of headers.
	longestText = 2000
	// The longest state, in bytes. A header carries the state. A longer state is left out, because a part of it is useless.
	longestState = 16 << 10
	// The shortest value of a Secret that is removed from messages. Shorter values occur in messages by chance.
	shortestSecret = 6
	// The shortest line of a value that is also removed from messages on its own.
	longLine = 16
	redacted = "<redacted>"
)

// failed returns the gRPC status for an error of a driver, with the values that the driver returned beside the error.
func failed(err error, secret map[string][]byte, known *driverpb.MachineResponse, state string) error {
	code, message := read(err)
	message = cut(strings.ToValidUTF8(redact(message, secret), "\uFFFD"))
	number := grpccodes.Code(code)
	if code == codes.Uninitialized {
		// gRPC has no such code. The detail contains it.
		number = grpccodes.FailedPrecondition
	}
	if len(state) > longestState {
		state = ""
	}
	answer := grpcstatus.New(number, message)
	// A proxy without a route answers Unimplemented, too. The detail says that the driver did.
	isPlain := code != codes.Uninitialized && code != codes.Unimplemented
	if isPlain && known == nil && state == "" {
		return answer.Err()
	}
	detail := &driverpb.StatusDetail{MachineCode: int32(code), Partial: known, LastKnownState: strings.ToValidUTF8(state, "\uFFFD")}
	if detailed, err := answer.WithDetails(detail); err == nil {
		answer = detailed
	}
	return answer.Err()
}

// read returns the code and the message of an error. The code OK of a failed call counts as Unknown.
func read(err error) (codes.Code, string) {
	var coded *status.Status
	if !errors.As(err, &coded) {
		var isCoded bool
		// The text of an error may contain a code although its type is lost.
		if coded, isCoded = status.FromError(err); !isCoded {
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				return codes.DeadlineExceeded, err.Error()
			case errors.Is(err, context.Canceled):
				return codes.Canceled, err.Error()
			}
		}
	}
	if code := coded.Code(); code != codes.OK && code <= codes.Uninitialized {
		return code, coded.Message()
	}
	return codes.Unknown, coded.Message()
}

// redact replaces the values of a Secret in a text.
func redact(text string, secret map[string][]byte) string {
	var values []string
	for _, value := range secret {
		values = append(values, base64.StdEncoding.EncodeToString(value))
		if !utf8.Valid(value) {
			continue
		}
		values = append(values, strings.TrimSpace(string(value)))
		for _, line := range strings.Split(string(value), "\n") {
			if line = strings.TrimSpace(line); len(line) >= longLine {
				values = append(values, line)
			}
		}
	}
	// The longest values are replaced first. Otherwise a shorter value could cut a longer one, and the rest of it would remain.
	sort.Slice(values, func(i, j int) bool { return len(values[i]) > len(values[j]) })
	for _, value := range values {
		if len(value) >= shortestSecret {
			text = strings.ReplaceAll(text, value, redacted)
		}
	}
	return text
}

// cut shortens a text to the size of a header. It never cuts a character.
func cut(text string) string {
	if len(text) <= longestText {
		return text
	}
	end := longestText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
