"""The room: several people on one machine. Who a visitor is, what is whose, which files may be opened, how much disk and queue each has.

Without a room ($DISTILL_ROOM is not set) there is one person at home, who may do everything.
"""

from .admission import admit, check_may_touch_cache, check_may_touch_text, check_queue, disk_use
from .page_top import address_of_page, page_top
from .places import check_config, check_download, check_path, check_source
from .policy import POLICY_VARIABLE, Policy, policy
from .visitors import Visitor, check_may_touch, checked_visitor_name, visitor_of

__all__ = [
    "POLICY_VARIABLE",
    "Policy",
    "Visitor",
    "address_of_page",
    "admit",
    "check_config",
    "check_download",
    "check_may_touch",
    "check_may_touch_cache",
    "check_may_touch_text",
    "check_path",
    "check_queue",
    "check_source",
    "checked_visitor_name",
    "disk_use",
    "page_top",
    "policy",
    "visitor_of",
]
