"""The study's claims by their numbers."""

from longca.lab.claims.contract import all_claims

CLAIMS = {claim.number: claim for claim in all_claims()}
